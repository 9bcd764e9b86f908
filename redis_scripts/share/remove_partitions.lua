#!lua flags=allow-oom
--[[ Remove share-partitions of a share group: their next use initialises them again.

KEYS[1]     group      hash  type, state
KEYS[2]     shares     hash  share-partitions of the group: <topic id in hex>:<partition> -> topic name
KEYS[3...]  share      hash  a share-partition; behind it available, acquired and locks (zset); four keys for each
ARGV[1]     1: only if the group has no members
ARGV[2]     when the broker's lease ends, ms by Redis's clock; 0 for a caller without a lease
ARGV[3...]  <topic id in hex>:<partition> of each
Returns  {NONE, number removed}; safe to run twice
Errors   GROUP_ID_NOT_FOUND  no such share group
         NON_EMPTY_GROUP     it has members
         COORDINATOR_NOT_AVAILABLE  the lease has ended: the group may have read on from other offsets since
]]
-- @include lib/errors
-- @include lib/now_ms
local call, lease_end = redis.call, tonumber(ARGV[2])
if lease_end > 0 and now_ms() >= lease_end then return { ERROR.COORDINATOR_NOT_AVAILABLE } end
local found = call("HMGET", KEYS[1], "type", "state")
if found[1] ~= "share" then return { ERROR.GROUP_ID_NOT_FOUND } end
if ARGV[1] == "1" and found[2] ~= "Empty" then return { ERROR.NON_EMPTY_GROUP } end
local removed = 0
for i = 3, #ARGV do removed = removed + call("HDEL", KEYS[2], ARGV[i]) end
for i = 3, #KEYS do call("UNLINK", KEYS[i]) end
return { ERROR.NONE, removed }
