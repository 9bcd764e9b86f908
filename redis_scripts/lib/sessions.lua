-- Session deadlines of many members at once. Reads members and protocols; writes sessions.
-- @include lib/deadlines
-- @include lib/tallies
local sessions = {}

-- `scores` are deadlines and member ids, in turn; `earliest` is the lowest deadline.
function sessions.set(group, scores, earliest)
  if #scores == 0 then return end
  deadlines.note_session(group, earliest)
  for i = 1, #scores, 900 do
    redis.call("ZADD", group.keys.sessions, unpack(scores, i, math.min(i + 899, #scores)))
  end
end

-- The session timeout common to all members; nil if they differ.
local function common_timeout(group)
  local timeouts = tallies.read(group).session_timeout_ms
  local timeout_ms = next(timeouts)
  if timeout_ms and next(timeouts, timeout_ms) == nil then return tonumber(timeout_ms) end
end

local function start_ids(group, ids, timeout_ms)
  local scores, deadline = {}, string.format("%.0f", group.now + timeout_ms)
  for i, id in ipairs(ids) do scores[2 * i - 1], scores[2 * i] = deadline, id end
  sessions.set(group, scores, group.now + timeout_ms)
end

-- Of all members, or of those whose record contains this text.
local function start_records(group, text)
  local scores, n, earliest, everyone = {}, 0, math.huge, redis.call("HGETALL", group.keys.members)
  for i = 1, #everyone, 2 do
    if not text or everyone[i + 1]:find(text, 1, true) then
      local deadline = group.now + everyone[i + 1]:match(MEMBER.SESSION_TIMEOUT)
      scores[n + 1], scores[n + 2], n = string.format("%.0f", deadline), everyone[i], n + 2
      earliest = math.min(earliest, deadline)
    end
  end
  sessions.set(group, scores, earliest)
end

-- A whole session timeout from now for every member; `ids` are theirs, if the caller has read them.
function sessions.start_all(group, ids)
  local timeout_ms = common_timeout(group)
  if timeout_ms then return start_ids(group, ids or redis.call("HKEYS", group.keys.members), timeout_ms) end
  start_records(group)
end

-- The same for members with a parked sync of this generation, which is answered now.
function sessions.start_synced(group, ids)
  if group.awaiting_sync == 0 then return sessions.start_all(group, ids) end
  if group.awaiting_sync == redis.call("HLEN", group.keys.members) then return end
  start_records(group, string.format(MEMBER.SYNCED, group.generation))
end
