#!lua flags=allow-oom
--[[ Take or renew a singleton lease: one broker at a time holds it.

KEYS[1]  lease  hash  broker, until
ARGV[1]  broker that asks for the lease
ARGV[2]  lease duration, ms; 0 releases it
Returns  {NONE, ms for which the broker holds it, or less than 0: minus the ms until it ends for its holder, ms that it
         was free before or -1, now}; safe to run twice
Errors   none
]]
-- @include lib/errors
-- @include lib/now_ms
local singleton_lease, broker, hold_ms, STEP_MS = KEYS[1], ARGV[1], tonumber(ARGV[2]), 1000

local now, idle_ms = now_ms(), -1
local holder, held_until = unpack(redis.call("HMGET", singleton_lease, "broker", "until"))
if holder then
  local left_ms = tonumber(held_until) - now
  if hold_ms > 0 and left_ms > hold_ms + STEP_MS then
    left_ms = hold_ms -- Redis's clock stepped back: no lease lasts longer than its duration
    redis.call("HSET", singleton_lease, "until", string.format("%.0f", now + hold_ms))
  end
  if holder ~= broker and left_ms > 0 then return { ERROR.NONE, -left_ms, idle_ms, now } end
  if left_ms <= 0 then idle_ms = -left_ms end
end
redis.call("HSET", singleton_lease, "broker", broker, "until", string.format("%.0f", now + hold_ms))
return { ERROR.NONE, hold_ms, idle_ms, now }
