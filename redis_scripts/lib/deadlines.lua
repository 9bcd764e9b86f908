-- The group's next deadline, and the shard's index of deadlines, by which the sweep finds groups without requests.
-- `g.change.session_due` is the lowest session deadline or less: an early check is harmless, so the extension of a
-- session changes neither this field nor the index; `g.change.session_moved` is whether the index must be written.
local function first_session(g)
  local first = redis.call("ZRANGE", sessions, 0, 0, "WITHSCORES")
  g.change.session_due = tonumber(first[2] or math.huge)
  return first[1]
end

local function note_session(g, deadline)
  if deadline < g.change.session_due then g.change.session_due, g.change.session_moved = deadline, true end
end

-- Set the session deadline of a member (or of a pending member id), ms.
local function hold(g, member_id, deadline)
  redis.call("ZADD", sessions, string.format("%.0f", deadline), member_id)
  note_session(g, deadline)
end

local function earliest_due(g)
  local member_id = first_session(g)
  local kind, due = "session", g.change.session_due
  if g.join_deadline > 0 and g.join_deadline < due then kind, due = "join", g.join_deadline end
  if g.sync_deadline > 0 and g.sync_deadline < due then kind, due = "sync", g.sync_deadline end
  if due <= now then return kind, due, member_id end
end

local function until_next(g)
  local due = g.change.session_due
  if g.join_deadline > 0 and g.join_deadline < due then due = g.join_deadline end
  if g.sync_deadline > 0 and g.sync_deadline < due then due = g.sync_deadline end
  return due == math.huge and -1 or math.max(due - now, 0)
end

local function hint(kind, deadline)
  if deadline > 0 and deadline < math.huge then
    redis.call("ZADD", deadlines, string.format("%.0f", deadline), kind .. "|" .. ref)
  else
    redis.call("ZREM", deadlines, kind .. "|" .. ref)
  end
end
