#!lua flags=allow-oom
--[[ Release what a member has acquired of share-partitions, because its share session ends (KIP-932).

A member whose partition moved to another broker has sessions at both: one that ends releases nothing of the other.

KEYS[1]     configs    hash    configs of the group
KEYS[2]     shares     hash    share-partitions of the group: <topic id in hex>:<partition> -> topic name
KEYS[3]     letters    stream  records that wait to be written to the group's dead-letter topic
KEYS[4]     deadlines  zset    the shard's index of deadlines
KEYS[5...]  partition  hash    end, epoch, unfinished, redelivered, failed, and rows: first offset -> last offset, count, size, owner;
            behind it available (zset, first offset of a row), acquired (zset, the same), locks (zset, first offset ->
            deadline, ms); four keys for each share-partition
ARGV[1]     default of the delivery limit
ARGV[2]     default of the lock duration, ms
ARGV[3]     default of the largest window, offsets
ARGV[4]     member id
ARGV[5]     channel to notify of records that are available again
ARGV[6]     the group's name in the shard's keys
ARGV[7]     id of the share session that acquired it; "" for what the member acquired in any session
Returns  {NONE}; safe to run twice
Errors   none
]]
-- @include lib/errors
-- @include lib/share_partition
-- @include lib/share_rows
local group = share_rows.read_group(ARGV[6], ARGV[1], ARGV[2], ARGV[3])
for key = 5, #KEYS, 4 do
  local p = share_partition.open(key, group)
  if p then
    for _, row in ipairs(share_partition.rows_of(p, redis.call("ZRANGE", p.acquired, 0, -1))) do
      if row.owner == ARGV[4] and (ARGV[7] == "" or row.session == ARGV[7]) then
        share_rows.take_out(p, row)
        share_rows.end_delivery(p, row)
      end
    end
    share_rows.save(p)
  end
end
if group.made_available then redis.call("PUBLISH", ARGV[5], ARGV[6]) end
return { ERROR.NONE }
