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
ARGV[4]     rows to read, about: what is behind them is left to the next call
ARGV[5]     member id
ARGV[6]     channel to notify of records that are available again
ARGV[7]     the group's name in the shard's keys
ARGV[8]     id of the share session that acquired it; "" for what the member acquired in any session
ARGV[9]     offset of the first share-partition from which on its rows are read
Returns  {NONE, number of share-partitions, in order, that are not left to the next call, ARGV[9] of that call};
         safe to run twice
Errors   none
]]
-- @include lib/errors
-- @include lib/number_text
-- @include lib/share_partition
-- @include lib/share_rows
local group = share_rows.read_group(ARGV[7], ARGV[1], ARGV[2], ARGV[3], ARGV[4])

-- Release what the member has acquired from an offset on; the offset from which on there may be more, or nil.
local function release(p, from)
  local most = group.rows_left
  local firsts = redis.call("ZRANGEBYSCORE", p.acquired, from, "+inf", "LIMIT", 0, number_text(most))
  for _, row in ipairs(share_partition.rows_of(p, firsts)) do
    if row.owner == ARGV[5] and (ARGV[8] == "" or row.session == ARGV[8]) then
      share_rows.take_out(p, row)
      share_rows.end_delivery(p, row)
    end
  end
  share_rows.save(p)
  return #firsts >= most and number_text(tonumber(firsts[#firsts]) + 1) or nil
end

local done, from = 0, ARGV[9]
for key = 5, #KEYS, 4 do
  if group.rows_left <= 0 then break end
  local p = share_partition.open(key, group)
  local rest = p and release(p, from)
  from = rest or "0"
  if rest then break end
  done = done + 1
end
if group.made_available then redis.call("PUBLISH", ARGV[6], ARGV[7]) end
return { ERROR.NONE, done, from }
