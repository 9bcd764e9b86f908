-- is_late(sent_at, now): whether a script may come behind commits that were made after it: it took long, or a broker sent it
-- again (`sent_at`, ms, is negative then; 0: unknown). Reads and writes no key.
local LATE_MS = 500

local function is_late(sent_at, now)
  return sent_at < 0 or (sent_at > 0 and now - sent_at > LATE_MS)
end
