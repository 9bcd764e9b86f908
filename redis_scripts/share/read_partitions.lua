#!lua flags=no-writes
--[[ Read how far share-partitions have come (KIP-932).

KEYS[1...]  partition  hash  end, epoch, unfinished, and rows; behind it available (zset, first offset of a row),
            acquired (zset, the same), locks (zset, first offset -> deadline, ms); four keys for each share-partition
Returns  {NONE, for each share-partition: start offset or -1 if it is not initialised, end, number of unfinished records
         below it, number of locked ranges, number of available ranges};
         running twice changes nothing
Errors   none
]]
-- @include lib/errors
-- @include lib/share_partition
local answer = { ERROR.NONE }
for key = 1, #KEYS, 4 do
  local p = share_partition.open(key)
  if p then
    answer[#answer + 1] = share_partition.start_of(p)
    answer[#answer + 1] = p.last_end
    answer[#answer + 1] = p.unfinished
    answer[#answer + 1] = redis.call("ZCARD", p.acquired)
    answer[#answer + 1] = redis.call("ZCARD", p.available)
  else
    for _, value in ipairs({ -1, -1, 0, 0, 0 }) do answer[#answer + 1] = value end
  end
end
return answer
