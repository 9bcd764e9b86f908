#!lua flags=allow-oom
--[[ Bring a log's estimates and its time index up to date, about once a second.

KEYS[1]  meta   hash  state, bytes, batches
KEYS[2]  times  zset  base offset, 19 digits -> largest timestamp up to and with that entry, ms
ARGV[1]  bytes appended since
ARGV[2]  batches appended since
ARGV[3]  base offset to index, 19 digits, or "" for none
ARGV[4]  its timestamp
Returns  {NONE}; running twice counts twice: these are estimates
Errors   UNKNOWN_TOPIC_OR_PARTITION  deleted
]]
-- @include lib/errors
local meta, times = KEYS[1], KEYS[2]
local base, timestamp = ARGV[3], ARGV[4]

if redis.call("HGET", meta, "state") ~= "ready" then return { ERROR.UNKNOWN_TOPIC_OR_PARTITION } end

redis.call("HINCRBY", meta, "bytes", ARGV[1])
redis.call("HINCRBY", meta, "batches", ARGV[2])
if base ~= "" then
  redis.call("ZREMRANGEBYSCORE", times, timestamp, timestamp)
  redis.call("ZADD", times, timestamp, base)
end
return { ERROR.NONE }
