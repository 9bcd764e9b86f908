#!lua flags=no-writes
--[[ Read what is in flight of share-partitions (KIP-932).

KEYS[1...]  partition  hash  end, epoch, unfinished, redelivered, failed, dead_lettered, dropped, and rows: first offset ->
            last offset, delivery count, size, owner; behind it available (zset, first offset of a row), acquired (zset, the same), locks (zset,
            first offset -> deadline, ms); four keys for each share-partition
ARGV[1]  rows to read, about: the share-partitions behind them are left to the next call
Returns  {NONE, for each share-partition, in order, that is not left to the next call: {start offset, end,
         unfinished records below it, records that are available
         again, records that wait for their time or for an earlier record of their key, highest delivery count of an
         unfinished record, records delivered more than once so far, records that failed so far, those of them that were written to the dead-letter topic, those that could not be written to it,
         deadline of the first lock in ms or -1, then member id and number of acquired records of each
         member that has some}}; {} if it is not initialised; running twice changes nothing
Errors   none
]]
-- @include lib/errors
-- @include lib/share_partition
local answer, rows_left = { ERROR.NONE }, tonumber(ARGV[1])
for key = 1, #KEYS, 4 do
  local p, found = share_partition.open(key), {}
  if p then
    local available, acquired = redis.call("ZRANGE", p.available, 0, -1), redis.call("ZRANGE", p.acquired, 0, -1)
    rows_left = rows_left - #available - #acquired
    if rows_left < 0 and #answer > 1 then break end
    local totals = redis.call("HMGET", p.hash, "redelivered", "failed", "dead_lettered", "dropped")
    local returned, waiting, highest, order, by_member = 0, 0, 0, {}, {}
    for _, row in ipairs(share_partition.rows_of(p, available)) do
      returned, highest = returned + share_partition.length(row), math.max(highest, row.count)
    end
    for _, row in ipairs(share_partition.rows_of(p, acquired)) do
      highest = math.max(highest, row.count)
      if row.owner == "" then
        waiting = waiting + share_partition.length(row)
      else
        if not by_member[row.owner] then order[#order + 1] = row.owner end
        by_member[row.owner] = (by_member[row.owner] or 0) + share_partition.length(row)
      end
    end
    found = {
      share_partition.start_of(p), p.last_end, p.unfinished, returned, waiting, highest, tonumber(totals[1] or 0), tonumber(totals[2] or 0),
      tonumber(totals[3] or 0), tonumber(totals[4] or 0), share_partition.next_deadline(p),
    }
    for _, member_id in ipairs(order) do
      found[#found + 1], found[#found + 2] = member_id, by_member[member_id]
    end
  end
  answer[#answer + 1] = found
end
return answer
