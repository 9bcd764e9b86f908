-- The end offset of a log: after its last entry, which is never removed. Reads log.
-- @include lib/last_entry
local function log_end(log)
  local _, stop = last_entry(log, "+")
  return stop or 0
end
