#!lua flags=allow-oom
--[[ Update a log's estimates, its time index and its high watermark, about once a second.

KEYS[1]  meta   hash  state, bytes, batches, incarnation, high_watermark
KEYS[2]  times  zset  base offset, 19 digits -> largest timestamp up to and with that entry, ms
ARGV[1]  bytes appended since
ARGV[2]  batches appended since
ARGV[3]  base offset to index, 19 digits, or "" for none
ARGV[4]  its timestamp
ARGV[5]  offset up to which `durability` is confirmed, or "" for none; ignored if it is lower than the stored one
ARGV[6]  the failover epoch in which it was confirmed: after a later fail-over that end may be lost
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
