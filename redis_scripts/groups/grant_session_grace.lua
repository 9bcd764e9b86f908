#!lua flags=allow-oom
--[[ Extend every session by one session timeout, because the broker that served the members went silent.

Its clients may still wait for it. Refused until the sessions extended last have had time to expire; otherwise
repeated broker failures would keep dead members forever.

KEYS[1]  group     hash  state, round, generation, spared_at (the time of the last grace, ms)
KEYS[2]  members   hash  member id -> its record
KEYS[3]  sessions  zset  member id -> session deadline or lease, ms
Returns  {NONE, number of sessions extended}; safe to run twice: the second run is refused as too soon
Errors   none
]]
-- @include lib/errors
-- @include lib/now_ms
local TIMEOUTS = 3
local group, members, sessions = KEYS[1], KEYS[2], KEYS[3]
local now, everyone = now_ms(), redis.call("HGETALL", members)
local state, round, generation, grace_granted_at = unpack(redis.call("HMGET", group, "state", "round", "generation", "spared_at"))

-- A parked request holds a lease, not a session: the lease ends if the broker that parked it is gone.
local parked
if state == STATE.PREPARING then parked = string.format(MEMBER.JOINED, round) end
if state == STATE.COMPLETING then parked = string.format(MEMBER.SYNCED, generation) end

local scores, longest = {}, 0
for i = 1, #everyone, 2 do
  local timeout_ms = tonumber(string.match(everyone[i + 1], MEMBER.SESSION_TIMEOUT))
  longest = math.max(longest, timeout_ms)
  if not (parked and everyone[i + 1]:find(parked, 1, true)) then
    scores[#scores + 1], scores[#scores + 2] = string.format("%.0f", now + 2 * timeout_ms), everyone[i]
  end
end

if #scores == 0 or now - tonumber(grace_granted_at or 0) < TIMEOUTS * longest then return { ERROR.NONE, 0 } end
redis.call("HSET", group, "spared_at", string.format("%.0f", now))
for i = 1, #scores, 900 do
  redis.call("ZADD", sessions, "XX", "GT", unpack(scores, i, math.min(i + 899, #scores)))
end
return { ERROR.NONE, #scores / 2 }
