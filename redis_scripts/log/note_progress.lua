#!lua flags=allow-oom
--[[ Bring a log's estimates, its time index and its high watermark up to date, about once a second.

KEYS[1]  meta   hash  state, bytes, batches, incarnation, high_watermark
KEYS[2]  times  zset  base offset, 19 digits -> largest timestamp up to and with that entry, ms
ARGV[1]  bytes appended since
ARGV[2]  batches appended since
ARGV[3]  base offset to index, 19 digits, or "" for none
ARGV[4]  its timestamp
ARGV[5]  offset up to which `durability` was proved, or "" for none; a lower one than the stored is passed over
ARGV[6]  the incarnation under which it was proved: of an earlier one the end may have been lost since
Returns  {NONE}; running twice counts twice: these are estimates
Errors   UNKNOWN_TOPIC_OR_PARTITION  deleted
]]
-- @include lib/errors
local meta, times = KEYS[1], KEYS[2]
local base, timestamp, proved = ARGV[3], ARGV[4], tonumber(ARGV[5])

if redis.call("HGET", meta, "state") ~= "ready" then return { ERROR.UNKNOWN_TOPIC_OR_PARTITION } end

redis.call("HINCRBY", meta, "bytes", ARGV[1])
redis.call("HINCRBY", meta, "batches", ARGV[2])
if base ~= "" then
  redis.call("ZREMRANGEBYSCORE", times, timestamp, timestamp)
  redis.call("ZADD", times, timestamp, base)
end
if proved then
  local failover_epoch, stored = unpack(redis.call("HMGET", meta, "incarnation", "high_watermark"))
  if failover_epoch == ARGV[6] and proved > tonumber(stored or 0) then redis.call("HSET", meta, "high_watermark", ARGV[5]) end
end
return { ERROR.NONE }
