-- sweep_resumed_at(deadlines_key, now): before this time no broker swept, or Redis's clock stepped forward, so a member
-- without contact need not be dead. Reads the marks in the shard's index of deadlines (SWEEP in `lib/layout`).
local function sweep_resumed_at(deadlines_key, now)
  local swept_at = -tonumber(redis.call("ZSCORE", deadlines_key, SWEEP.SWEPT) or 0)
  if swept_at > 0 and now - swept_at > SWEEP.GAP_MS then return now end
  return math.min(-tonumber(redis.call("ZSCORE", deadlines_key, SWEEP.RESUMED) or 0), now)
end
