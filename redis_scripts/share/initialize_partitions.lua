#!lua flags=allow-oom
--[[ Set the start offsets of share-partitions that have none (KIP-932).

KEYS[1]     shares     hash  the group's share-partitions: <topic id in hex>:<partition> -> topic name
KEYS[2...]  partition  hash  end, epoch, unfinished; one key for each share-partition
ARGV[1]     topic name
ARGV[2...]  for each share-partition: <topic id in hex>:<partition>, start offset
Returns  {NONE}; safe to run twice: the second run changes nothing
Errors   none
]]
-- @include lib/errors
-- @include lib/now_ms
local call, now = redis.call, string.format("%.0f", now_ms())
for i = 2, #KEYS do
  local at = 2 * i - 2
  if call("HSETNX", KEYS[i], "end", ARGV[at + 1]) == 1 then
    call("HSET", KEYS[i], "epoch", now, "unfinished", 0)
  end
  call("HSET", KEYS[1], ARGV[at], ARGV[1])
end
return { ERROR.NONE }
