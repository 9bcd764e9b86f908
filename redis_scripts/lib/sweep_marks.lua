-- Marks in a shard's index of deadlines, below zero: minus the time of its last sweep, and of the first one after a gap.
-- `sweep_resumed_at()` reads both: nobody was there before it, or Redis's clock stepped forward, so silence says nothing.
local SWEPT, RESUMED, SWEEP_GAP_MS = "swept", "resumed", 3000

local function marked_at(mark)
  return -tonumber(redis.call("ZSCORE", deadlines, mark) or 0)
end

local function sweep_resumed_at()
  local swept_at = marked_at(SWEPT)
  if swept_at > 0 and now - swept_at > SWEEP_GAP_MS then return now end
  return math.min(marked_at(RESUMED), now)
end
