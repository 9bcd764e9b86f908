#!lua flags=no-writes
--[[ Read the start offsets of share-partitions: the first offsets that are not finished.

KEYS[1...]  partition  hash  end; behind it available, acquired, locks (zset); four keys for each share-partition
Returns  {NONE, for each share-partition: its start offset, -1 if it is not initialised}; running twice changes nothing
Errors   none
]]
-- @include lib/errors
-- @include lib/share_partition
local answer = { ERROR.NONE }
for key = 1, #KEYS, 4 do
  local p = share_partition.open(key)
  answer[#answer + 1] = p and share_partition.start_of(p) or -1
end
return answer
