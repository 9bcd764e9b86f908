-- Where a log ends: after its last entry, which is never removed.
-- @include lib/last_entry
local function log_end(log)
  local _, stop = last_entry(log, "+")
  return stop or 0
end
