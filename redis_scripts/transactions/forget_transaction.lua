#!lua flags=allow-oom
--[[ Forget a transactional id that was not used for a long time.

KEYS[1]  transaction   hash  the record: version, update_ms, ...
KEYS[2]  transactions  hash  the shard's transactional ids
KEYS[3]  deadlines     zset  name -> when a broker must look at it, ms
ARGV[1]  name in the shard's keys
ARGV[2]  version that the broker read, in which no transaction is open
ARGV[3]  how long it must be unused, ms
Returns  {NONE, 1 if forgotten}; safe to run twice
Errors   none
]]
-- @include lib/errors
-- @include lib/now_ms
local transaction, name = KEYS[1], ARGV[1]
local version, update_ms = unpack(redis.call("HMGET", transaction, "version", "update_ms"))
if version and version ~= ARGV[2] then return { ERROR.NONE, 0 } end
if version and tonumber(update_ms) + tonumber(ARGV[3]) > now_ms() then
  redis.call("ZADD", KEYS[3], string.format("%.0f", tonumber(update_ms) + tonumber(ARGV[3])), name)
  return { ERROR.NONE, 0 }
end
redis.call("UNLINK", transaction)
redis.call("HDEL", KEYS[2], name)
redis.call("ZREM", KEYS[3], name)
return { ERROR.NONE, 1 }
