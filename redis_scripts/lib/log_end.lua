-- Where a log ends: after its last entry, which is never removed.
-- @include lib/entry_end
local function log_end(log)
  local last = redis.call("XREVRANGE", log, "+", "-", "COUNT", 1)[1]
  return last and entry_end(last) or 0
end
