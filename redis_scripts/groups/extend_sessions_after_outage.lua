#!lua flags=allow-oom
--[[ Extend overdue sessions by one session timeout, because no member could reach Redis during the outage.

Extends expired sessions, and the overdue deadline of a barrier with missing members, because those may have been
unable to rejoin.

KEYS[1]  group     hash  state, prev_state, joined_count, join_deadline, sync_deadline
KEYS[2]  members   hash  member id -> its record
KEYS[3]  sessions  zset  member id -> session deadline or lease, ms
Returns  {NONE, number of deadlines extended}; safe to run twice: an extended deadline is not overdue
Errors   none
]]
-- @include lib/errors
-- @include lib/now_ms
local group, members, sessions = KEYS[1], KEYS[2], KEYS[3]
local now, extended = now_ms(), 0

local function timeout_of(record)
  return tonumber(string.match(record, MEMBER.SESSION_TIMEOUT))
end

for _, member_id in ipairs(redis.call("ZRANGEBYSCORE", sessions, "-inf", string.format("%.0f", now))) do
  local record = redis.call("HGET", members, member_id)
  if record then
    redis.call("ZADD", sessions, string.format("%.0f", now + timeout_of(record)), member_id)
    extended = extended + 1
  end
end

local state, prev_state, joined, join_deadline, sync_deadline =
  unpack(redis.call("HMGET", group, "state", "prev_state", "joined_count", "join_deadline", "sync_deadline"))

local function is_due(deadline)
  deadline = tonumber(deadline or 0)
  return deadline > 0 and deadline <= now
end

local function extend(field)
  local longest = 0
  for _, record in ipairs(redis.call("HVALS", members)) do longest = math.max(longest, timeout_of(record)) end
  redis.call("HSET", group, field, string.format("%.0f", now + longest))
  extended = extended + 1
end

local missing = state == STATE.PREPARING and prev_state ~= STATE.EMPTY and tonumber(joined) < redis.call("HLEN", members)
if missing and is_due(join_deadline) then extend("join_deadline") end
if is_due(sync_deadline) then extend("sync_deadline") end
return { ERROR.NONE, extended }
