-- is_overtaken(offsets, sent_at, first, entry_count, head). Reads offsets (hash, <topic>:<partition>, behind `head` if there
-- is one -> JSON of a commit) and ARGV from `first` on: field, JSON, field, JSON, ... Writes nothing. A connection may
-- deliver a script long after its broker has given it up and the client has committed through another one. A script
-- that a broker sends again, as a deadline was due or the group had another type, may come behind the client's next
-- commit. True if a higher offset was committed since `sent_at` (ms); asked only of scripts that were late, or sent
-- again (`is_late`): their `sent_at`, that of the first, is negative.
local CLOCK_ERROR_MS = 5 -- of what a broker takes for this server's time

local function is_overtaken(offsets, sent_at, first, entry_count, head)
  if sent_at < 0 then sent_at = -sent_at - CLOCK_ERROR_MS end
  for i = first, first + 2 * entry_count - 2, 2 do
    local stored = redis.call("HGET", offsets, (head or "") .. ARGV[i])
    local committed_at = stored and string.match(stored, OFFSET.COMMIT_TIME)
    if committed_at and tonumber(committed_at) > sent_at then
      local offset = string.match(ARGV[i + 1], OFFSET.OFFSET)
      if not offset or tonumber(string.match(stored, OFFSET.OFFSET) or -1) > tonumber(offset) then return true end
    end
  end
  return false
end
