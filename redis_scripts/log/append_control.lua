#!lua flags=allow-oom
--[[ Append transaction markers to a log, also when Redis is full: an open transaction would hold its readers back.

The same compare-and-set as a plain XADD: an id that is not above the stream's last one is refused, with Redis's error.

KEYS[1]  log  stream
ARGV[1]  entry id, <base offset>-1
ARGV[2]  writer
ARGV[3]  and on: the control batches
Returns  the entry's id; nil if the stream does not exist; run twice, the second run is refused
Errors   none
]]
local entry = { "w", ARGV[2] }
for i = 3, #ARGV do
  entry[#entry + 1] = "b"
  entry[#entry + 1] = ARGV[i]
end
return redis.call("XADD", KEYS[1], "NOMKSTREAM", ARGV[1], unpack(entry))
