#!lua flags=allow-oom
--[[ Renew the lease on a requested compaction, or store its result. One that expired, or is done, is left alone.

KEYS[1]  compactions  hash  as in log/take_compaction
ARGV[1]  the partition as in the hash
ARGV[2]  its result, "" to renew the lease
ARGV[3]  length of the lease, ms
Returns  {NONE}; safe to run twice
Errors   none
]]
-- @include lib/errors
-- @include lib/now_ms
local compactions, partition, result, lease_ms = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])

local state = redis.call("HGET", compactions, partition)
if state and string.sub(state, 1, 6) == "taken " then
  if result == "" then result = string.format("taken %.0f", now_ms() + lease_ms) end
  redis.call("HSET", compactions, partition, result)
end
return { ERROR.NONE }
