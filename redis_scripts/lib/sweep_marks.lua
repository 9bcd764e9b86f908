-- Marks in a shard's index of deadlines, with negative scores: minus the time of the last sweep, and of the first sweep
-- after a gap. `sweep_resumed_at()` reads both: before it no broker ran, or Redis's clock stepped forward, so a member
-- without contact need not be dead.
local SWEPT, RESUMED, SWEEP_GAP_MS = "swept", "resumed", 3000

local function marked_at(mark)
  return -tonumber(redis.call("ZSCORE", deadlines, mark) or 0)
end

local function sweep_resumed_at()
  local swept_at = marked_at(SWEPT)
  if swept_at > 0 and now - swept_at > SWEEP_GAP_MS then return now end
  return math.min(marked_at(RESUMED), now)
end
