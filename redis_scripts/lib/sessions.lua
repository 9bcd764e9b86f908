-- Session deadlines of many members at once; `earliest` is the lowest of them.
local function arm(scores, earliest)
  if #scores == 0 then return end
  note_session(g, earliest)
  for i = 1, #scores, 900 do
    redis.call("ZADD", sessions, unpack(scores, i, math.min(i + 899, #scores)))
  end
end

-- The session timeout common to all members; nil if they differ.
local function common_timeout()
  local timeouts = read_tallies().session_timeout_ms
  local timeout_ms = next(timeouts)
  if timeout_ms and next(timeouts, timeout_ms) == nil then return tonumber(timeout_ms) end
end

local function arm_ids(ids, timeout_ms)
  local scores, deadline = {}, string.format("%.0f", now + timeout_ms)
  for i, id in ipairs(ids) do scores[2 * i - 1], scores[2 * i] = deadline, id end
  arm(scores, now + timeout_ms)
end

-- Of all members, or of those whose record contains this text.
local function arm_records(text)
  local scores, n, earliest, everyone = {}, 0, math.huge, redis.call("HGETALL", members)
  for i = 1, #everyone, 2 do
    if not text or everyone[i + 1]:find(text, 1, true) then
      local deadline = now + everyone[i + 1]:match(SESSION_TIMEOUT)
      scores[n + 1], scores[n + 2], n = string.format("%.0f", deadline), everyone[i], n + 2
      earliest = math.min(earliest, deadline)
    end
  end
  arm(scores, earliest)
end

local function arm_all(ids)
  local timeout_ms = common_timeout()
  if timeout_ms then return arm_ids(ids or redis.call("HKEYS", members), timeout_ms) end
  arm_records()
end

-- Members with a parked sync of this generation, which is answered now.
local function arm_synced(ids)
  if g.awaiting_sync == 0 then return arm_all(ids) end
  if g.awaiting_sync == redis.call("HLEN", members) then return end
  arm_records(string.format('"sync_generation":%.0f,', g.generation))
end
