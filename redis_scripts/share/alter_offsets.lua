#!lua flags=allow-oom
--[[ Set the start offsets of share-partitions of a group without members; the first offset creates a missing group.

KEYS[1]     group      hash  id, type, state
KEYS[2]     shares     hash  share-partitions of the group: <topic id in hex>:<partition> -> topic name
KEYS[3]     groups     hash  the shard's groups: name -> "<type> <state> <protocol type>"
KEYS[4...]  share      hash  a share-partition; behind it available, acquired and locks (zset); four keys for each
ARGV[1]     the group's name in the shard's keys
ARGV[2]     "<id> <locator>" in case the group is created
ARGV[3]     when the broker's lease ends, ms by Redis's clock; 0 for a caller without a lease
ARGV[4...]  for each share-partition: <topic id in hex>:<partition>, topic name, start offset
Returns  {NONE}; safe to run twice
Errors   GROUP_ID_NOT_FOUND  the group is of another type
         NON_EMPTY_GROUP     it has members
         COORDINATOR_NOT_AVAILABLE  the lease has ended: the offsets may have been altered through another broker since
]]
-- @include lib/errors
-- @include lib/now_ms
local call, group, now, lease_end = redis.call, KEYS[1], string.format("%.0f", now_ms()), tonumber(ARGV[3])
if lease_end > 0 and tonumber(now) >= lease_end then return { ERROR.COORDINATOR_NOT_AVAILABLE } end
local found = call("HMGET", group, "type", "state")
if found[1] and found[1] ~= "share" then return { ERROR.GROUP_ID_NOT_FOUND } end
if found[2] and found[2] ~= "Empty" then return { ERROR.NON_EMPTY_GROUP } end
if not found[1] and #KEYS > 3 then
  call("PERSIST", group) -- of a lost group its generation_floor is left
  local id, locator, org = string.match(ARGV[2], "^(%S+) (([^/]+)/%S+)$")
  call("HSET", group, "id", id, "org", org, "tier", "org", "locator", locator, "type", "share", "state", "Empty",
    "prev_state", "Dead", "generation", "0", "version", "1", "state_since", now, "created", now, "reason", "",
    "protocol_type", "share")
  call("HSET", KEYS[3], ARGV[1], "share Empty share")
end
for i = 4, #KEYS, 4 do
  local at = 4 + (i - 4) / 4 * 3
  local epoch = math.max(tonumber(call("HGET", KEYS[i], "epoch") or 0) + 1, tonumber(now))
  call("UNLINK", KEYS[i], KEYS[i + 1], KEYS[i + 2], KEYS[i + 3])
  call("HSET", KEYS[i], "end", ARGV[at + 2], "epoch", string.format("%.0f", epoch), "unfinished", 0)
  call("HSET", KEYS[2], ARGV[at], ARGV[at + 1])
end
return { ERROR.NONE }
