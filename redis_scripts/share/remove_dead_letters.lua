#!lua flags=allow-oom
--[[ Remove dead letters of a share group that were written to its dead-letter topic, or cannot be written (KIP-1191).

KEYS[1]     letters    stream  records that wait to be written to the group's dead-letter topic
KEYS[2...]  partition  hash    end, dead_lettered, dropped; the share-partition of each entry
ARGV[1...]  for each entry: its stream id, records that were written, records that cannot be written
Returns  {NONE}; safe to run twice: an entry counts once
Errors   none
]]
-- @include lib/errors
local call = redis.call
for i = 2, #KEYS do
  local at = 3 * i - 5
  -- A key of another type has no counts; the entries behind it are removed all the same, or they would be written again.
  if call("XDEL", KEYS[1], ARGV[at]) == 1 and redis.pcall("HEXISTS", KEYS[i], "end") == 1 then
    if ARGV[at + 1] ~= "0" then call("HINCRBY", KEYS[i], "dead_lettered", ARGV[at + 1]) end
    if ARGV[at + 2] ~= "0" then call("HINCRBY", KEYS[i], "dropped", ARGV[at + 2]) end
  end
end
return { ERROR.NONE }
