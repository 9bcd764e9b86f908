#!lua flags=allow-oom
--[[ Take a duty that one broker at a time has, or keep it.

KEYS[1]  duty  hash  broker, until
ARGV[1]  broker that asks
ARGV[2]  ms for which it has the duty then; 0 gives it up
Returns  {NONE, ms that it has it, or less than 0: ms until nobody has it, ms that nobody had it before or -1, now};
         safe to run twice
Errors   none
]]
-- @include lib/errors
-- @include lib/clock
local singleton_lease, broker, hold_ms, STEP_MS = KEYS[1], ARGV[1], tonumber(ARGV[2]), 1000

local now, idle_ms = now_ms(), -1
local holder, held_until = unpack(redis.call("HMGET", singleton_lease, "broker", "until"))
if holder then
  local left_ms = tonumber(held_until) - now
  if hold_ms > 0 and left_ms > hold_ms + STEP_MS then
    left_ms = hold_ms -- Redis's clock stepped back: nobody has it for longer than it can be asked for
    redis.call("HSET", singleton_lease, "until", string.format("%.0f", now + hold_ms))
  end
  if holder ~= broker and left_ms > 0 then return { ERROR.NONE, -left_ms, idle_ms, now } end
  if left_ms <= 0 then idle_ms = -left_ms end
end
redis.call("HSET", singleton_lease, "broker", broker, "until", string.format("%.0f", now + hold_ms))
return { ERROR.NONE, hold_ms, idle_ms, now }
