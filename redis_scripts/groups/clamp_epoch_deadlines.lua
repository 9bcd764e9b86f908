#!lua flags=allow-oom
--[[ Limit the deadlines of one KIP-848, share or streams group to now plus their timeouts, after Redis's clock stepped back.

KEYS[1]  group        hash  rollout_grace_ms, the longest time that a member may be away beyond its session; spared_at
KEYS[2]  consumers    hash  member id -> its record
KEYS[3]  sessions     zset  member id -> session deadline, ms
KEYS[4]  revocations  zset  member id -> deadline to confirm a revocation, or until which its successor is awaited, ms
KEYS[5]  deadlines    zset  the shard's index of deadlines
ARGV[1]  the group's item in the index of deadlines
Returns  {NONE, number of deadlines clamped}; safe to run twice: a clamped deadline is not too far ahead
Errors   none
]]
-- @include lib/errors
-- @include lib/now_ms
local call, now, clamped, earliest = redis.call, now_ms(), 0, nil
local grace_ms = tonumber(call("HGET", KEYS[1], "rollout_grace_ms") or 0)

local function clamp(key, timeout)
  local scores = call("ZRANGE", key, 0, -1, "WITHSCORES")
  for i = 1, #scores, 2 do
    local record, deadline = call("HGET", KEYS[2], scores[i]), tonumber(scores[i + 1])
    local latest = record and now + tonumber(string.match(record, timeout) or 0) + grace_ms
    if latest and deadline > latest then
      deadline, clamped = latest, clamped + 1
      call("ZADD", key, string.format("%.0f", latest), scores[i])
    end
    if not (earliest and earliest < deadline) then earliest = deadline end
  end
end

local spared_at = tonumber(call("HGET", KEYS[1], "spared_at") or 0)
if spared_at > now then call("HSET", KEYS[1], "spared_at", string.format("%.0f", now)) end
clamp(KEYS[3], CONSUMER.SESSION_TIMEOUT)
clamp(KEYS[4], CONSUMER.REBALANCE_TIMEOUT)
if earliest then call("ZADD", KEYS[5], "XX", "LT", string.format("%.0f", earliest), ARGV[1]) end
return { ERROR.NONE, clamped }
