#!lua flags=allow-oom
--[[ Read dead letters of a share group (KIP-1191), and keep the group's deadline from other brokers meanwhile. The deadline
goes when nothing is left.

KEYS[1]  letters    stream  records that wait to be written to the group's dead-letter topic
KEYS[2]  deadlines  zset    the shard's index of deadlines
ARGV[1]  the group's name in the shard's keys
ARGV[2]  stream id to read from; "-" for the first, "(<id>" for those after an entry
ARGV[3]  maximum number of entries
ARGV[4]  time for which no other broker takes the deadline, ms
Returns  {NONE, entries...}; safe to run twice: an entry is there until it is removed
Errors   none
]]
-- @include lib/errors
-- @include lib/now_ms
local call, letters, item = redis.call, KEYS[1], "dead-letters|" .. ARGV[1]
local found = call("XRANGE", letters, ARGV[2], "+", "COUNT", ARGV[3])
if #found > 0 then
  call("ZADD", KEYS[2], string.format("%.0f", now_ms() + tonumber(ARGV[4])), item)
elseif call("XLEN", letters) == 0 then
  call("UNLINK", letters)
  call("ZREM", KEYS[2], item)
end
return { ERROR.NONE, unpack(found) }
