-- The group's next deadline, and the shard's index of deadlines, by which the sweep finds groups without requests.
-- Reads sessions; writes sessions and the shard's deadlines.
local deadlines = {}

-- Note the lowest session deadline; returns whose it is.
function deadlines.first_session(group)
  local first = redis.call("ZRANGE", group.keys.sessions, 0, 0, "WITHSCORES")
  group.change.session_due = tonumber(first[2] or math.huge)
  return first[1]
end

function deadlines.note_session(group, deadline)
  local change = group.change
  if deadline < change.session_due then change.session_due, change.session_moved = deadline, true end
end

-- Set the session deadline of a member (or of a pending member id), ms.
function deadlines.set_session(group, member_id, deadline)
  redis.call("ZADD", group.keys.sessions, string.format("%.0f", deadline), member_id)
  deadlines.note_session(group, deadline)
end

-- The kind, time and member of the earliest overdue deadline; nil if there is none.
function deadlines.earliest_due(group)
  local member_id = deadlines.first_session(group)
  local kind, due = "session", group.change.session_due
  if group.join_deadline > 0 and group.join_deadline < due then kind, due = "join", group.join_deadline end
  if group.sync_deadline > 0 and group.sync_deadline < due then kind, due = "sync", group.sync_deadline end
  if due <= group.now then return kind, due, member_id end
end

function deadlines.until_next(group)
  local due = group.change.session_due
  if group.join_deadline > 0 and group.join_deadline < due then due = group.join_deadline end
  if group.sync_deadline > 0 and group.sync_deadline < due then due = group.sync_deadline end
  return due == math.huge and -1 or math.max(due - group.now, 0)
end

function deadlines.index(group, kind, deadline)
  if deadline > 0 and deadline < math.huge then
    redis.call("ZADD", group.keys.deadlines, string.format("%.0f", deadline), kind .. "|" .. group.ref)
  else
    redis.call("ZREM", group.keys.deadlines, kind .. "|" .. group.ref)
  end
end
