#!lua
--[[ Add entries to a capped stream of samples. Their time is by our clock, as everywhere; their ids are by the server's.

A full server refuses it: samples of memory use must not fill the memory.

KEYS[1]  samples  stream
ARGV[1]  approximate limit of entries
ARGV[2...]  of each entry: the number of its fields and values together, at most 7,000; field, value, ...
Returns  {NONE}; run twice, the samples are stored twice, which readers tolerate
Errors   none
]]
-- @include lib/errors
-- @include lib/now_ms
local time, at = string.format("%.0f", now_ms()), 2
while at <= #ARGV do
  local last = at + tonumber(ARGV[at])
  redis.call("XADD", KEYS[1], "MAXLEN", "~", ARGV[1], "*", "time", time, unpack(ARGV, at + 1, last))
  at = last + 1
end
return { ERROR.NONE }
