#!lua flags=allow-oom
--[[ Set the start offsets of share-partitions that have none (KIP-932).

KEYS[1]     shares     hash  the group's share-partitions: <topic id in hex>:<partition> -> topic name
KEYS[2...]  partition  hash  end, epoch, unfinished; behind it available, acquired and locks (zset); four keys for each
            share-partition. Those of a lost partition are removed: its rows are lost
ARGV[1]     topic name
ARGV[2...]  for each share-partition: <topic id in hex>:<partition>, start offset
Returns  {NONE}; safe to run twice: the second run changes nothing
Errors   none
]]
-- @include lib/errors
-- @include lib/now_ms
local call, now = redis.call, string.format("%.0f", now_ms())
for i = 2, #KEYS, 4 do
  local at = (i - 2) / 2 + 2
  if call("HSETNX", KEYS[i], "end", ARGV[at + 1]) == 1 then
    call("HSET", KEYS[i], "epoch", now, "unfinished", 0)
    call("UNLINK", KEYS[i + 1], KEYS[i + 2], KEYS[i + 3])
  end
  call("HSET", KEYS[1], ARGV[at], ARGV[1])
end
return { ERROR.NONE }
