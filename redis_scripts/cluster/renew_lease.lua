#!lua flags=allow-oom
--[[ Renew a broker's lease and return the live brokers, in one round trip.

KEYS[1]  leases   zset  node id -> when its lease was last renewed, ms
KEYS[2]  brokers  hash  node id -> the broker's record (JSON)
KEYS[3]  info     hash  brokers_version, drain:<node id>
ARGV[1]  node id
ARGV[2]  process that holds the lease
ARGV[3]  its record, stored if it differs
ARGV[4]  lease duration: ms after the last renewal
ARGV[5]  brokers_version whose records the caller has cached
ARGV[6]  ms since the caller's last renewal, by a monotonic clock; more than by Redis's clock if that stepped back,
         less if it stepped forward: the lease is valid in either case
Returns  {NONE, 1, ms since the last renewal, brokers_version, {node id, ms since its renewal, ...}, {record, ...}, drain, now}:
         the records in the order of the node ids, or none if the caller has them; drain is 1 if this process is asked
         to drain, else 0; now is Redis's clock, ms;
         {NONE, 0} if the lease has ended; safe to run twice
Errors   none
]]
-- @include lib/errors
-- @include lib/now_ms
-- @include lib/lease
local leases, brokers, info = KEYS[1], KEYS[2], KEYS[3]
local node_id, process, record, gone_ms, known = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local elapsed_ms, STEP_MS = tonumber(ARGV[6]), 1000

local now = now_ms()
local age = now - lease.renewed_at(leases, node_id)
if math.min(age, elapsed_ms) >= gone_ms or lease.process(brokers, node_id) ~= process then return { ERROR.NONE, 0 } end

redis.call("ZADD", leases, now, node_id)
if redis.call("HGET", brokers, node_id) ~= record then
  redis.call("HSET", brokers, node_id, record)
  lease.changed(info)
end

local live = redis.call("ZRANGEBYSCORE", leases, string.format("(%.0f", now - gone_ms), "+inf", "WITHSCORES")
local ids, ages = {}, {}
for i = 1, #live, 2 do
  if tonumber(live[i + 1]) > now + STEP_MS then
    redis.call("ZADD", leases, now, live[i]) -- the clock stepped back: as if it was renewed now
    live[i + 1] = now
  end
  ids[#ids + 1] = live[i]
  ages[#ages + 1] = tonumber(live[i])
  ages[#ages + 1] = now - tonumber(live[i + 1])
end
local version, asked = unpack(redis.call("HMGET", info, "brokers_version", "drain:" .. node_id))
version = version or "0"
local records = version ~= known and redis.call("HMGET", brokers, unpack(ids)) or {}
return { ERROR.NONE, 1, age, version, ages, records, asked == process and 1 or 0, now }
