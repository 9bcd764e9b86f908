#!lua flags=allow-oom
--[[ Delete a share group without members, and its share-partitions.

KEYS[1]     group      hash    type, state, generation
KEYS[2]     targets    hash    member id -> its target assignment
KEYS[3]     shares     hash    share-partitions of the group: <topic id in hex>:<partition> -> topic name
KEYS[4]     groups     hash    the shard's groups: name -> "<type> <state> <protocol type>"
KEYS[5]     deadlines  zset    the shard's index of deadlines
KEYS[6]     events     stream  the shard's events
KEYS[7...]  share      hash    a share-partition; behind it available, acquired and locks (zset); four keys for each
ARGV[1]     the group's name in the shard's keys
ARGV[2]     maximum number of stored events, 0 for none
ARGV[3]     broker
ARGV[4...]  the share-partitions whose keys are given: <topic id in hex>:<partition>
Returns   {NONE, 1, or 0 if the group has other share-partitions than those given}; run twice it answers GROUP_ID_NOT_FOUND, or deletes a group created in between: callers do not retry
Errors    GROUP_ID_NOT_FOUND  no such share group
          NON_EMPTY_GROUP     it has members
]]
-- @include lib/errors
-- @include lib/now_ms
local call, group, shares = redis.call, KEYS[1], KEYS[3]
local found = call("HMGET", group, "type", "state", "generation")
if found[1] ~= "share" then return { ERROR.GROUP_ID_NOT_FOUND } end
if found[2] ~= "Empty" then return { ERROR.NON_EMPTY_GROUP } end
if call("HLEN", shares) ~= #ARGV - 3 then return { ERROR.NONE, 0 } end
for i = 4, #ARGV do
  if call("HEXISTS", shares, ARGV[i]) == 0 then return { ERROR.NONE, 0 } end
end
for i = 7, #KEYS do call("UNLINK", KEYS[i]) end
call("UNLINK", group, KEYS[2], shares)
call("HDEL", KEYS[4], ARGV[1])
call("ZREM", KEYS[5], "share|" .. ARGV[1])
if ARGV[2] ~= "0" then
  call("XADD", KEYS[6], "MAXLEN", "~", ARGV[2], "*", "time", string.format("%.0f", now_ms()), "group", ARGV[1],
    "generation", found[3], "kind", "deleted", "cause", "requested", "member", "", "instance_id", "", "client_id", "",
    "host", "", "reason", "", "detail", "", "members", "0", "broker", ARGV[3], "duration_ms", "0")
end
return { ERROR.NONE, 1 }
