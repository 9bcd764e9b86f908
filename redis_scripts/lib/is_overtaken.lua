-- is_overtaken(offsets, sent_at, first, entry_count, deleted_at, head). Reads offsets (hash, <topic>:<partition>,
-- behind `head` if there is one -> JSON of a commit) and ARGV from `first` on: field, JSON, field, JSON, ... Writes
-- nothing. A connection may deliver a script long after its broker has given it up and the client has committed through
-- another one. A script that a broker sends again, as a deadline was due or the group had another type, may come behind
-- the client's next commit. True if another offset was committed since `sent_at` (ms), or offsets were deleted
-- (`deleted_at`, ms or nil) and one of these is missing. The second result is the commit time to store, ms: that of the
-- arrival, so that commits that are late together do not overtake each other; nil, the present time, if the same offset
-- was committed since. Asked only of scripts that were late, or sent again (`is_late`): their `sent_at`, that of the
-- first, is negative.
local CLOCK_ERROR_MS = 5 -- of what a broker takes for this server's time

local function is_overtaken(offsets, sent_at, first, entry_count, deleted_at, head)
  local arrived_at, has_newer = math.abs(sent_at), false
  local ordered_at = sent_at < 0 and arrived_at - CLOCK_ERROR_MS or arrived_at
  for i = first, first + 2 * entry_count - 2, 2 do
    local stored = redis.call("HGET", offsets, (head or "") .. ARGV[i])
    if not stored and deleted_at and tonumber(deleted_at) > arrived_at then return true end
    local committed_at = stored and tonumber(string.match(stored, OFFSET.COMMIT_TIME) or 0) or 0
    if committed_at > ordered_at then
      local newer, offset = string.match(stored, OFFSET.OFFSET) or "-1", string.match(ARGV[i + 1], OFFSET.OFFSET)
      -- One that may be older, by the error of the clocks, counts if it is higher.
      if newer ~= offset and (committed_at > arrived_at or tonumber(newer) > tonumber(offset)) then return true end
      has_newer = true
    end
  end
  return false, not has_newer and ordered_at or nil
end
