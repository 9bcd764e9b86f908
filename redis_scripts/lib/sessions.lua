-- Session timers of many members at once, each one session timeout from now.
local function arm(scores)
  for i = 1, #scores, 900 do
    redis.call("ZADD", sessions, unpack(scores, i, math.min(i + 899, #scores)))
  end
end

-- The deadline that all members share; nil where their timeouts differ.
local function common_deadline()
  local timeouts = read_tallies().session_timeout_ms
  local timeout_ms = next(timeouts)
  if timeout_ms and next(timeouts, timeout_ms) == nil then return string.format("%.0f", now + timeout_ms) end
end

local function deadline_of(record)
  return string.format("%.0f", now + record:match(SESSION_TIMEOUT))
end

local function arm_all(ids)
  local common, scores = common_deadline(), {}
  if common then
    for i, id in ipairs(ids or redis.call("HKEYS", members)) do scores[2 * i - 1], scores[2 * i] = common, id end
  else
    local everyone = redis.call("HGETALL", members)
    for i = 1, #everyone, 2 do scores[i], scores[i + 1] = deadline_of(everyone[i + 1]), everyone[i] end
  end
  arm(scores)
end

-- Members whose sync of this generation came: what was parked for them is answered now.
local function arm_synced(ids)
  if g.awaiting_sync == 0 then return arm_all(ids) end
  if g.awaiting_sync == redis.call("HLEN", members) then return end
  local common, scores = common_deadline(), {}
  local synced, everyone = string.format('"sync_generation":%.0f,', g.generation), redis.call("HGETALL", members)
  for i = 1, #everyone, 2 do
    if everyone[i + 1]:find(synced, 1, true) then
      scores[#scores + 1], scores[#scores + 2] = common or deadline_of(everyone[i + 1]), everyone[i]
    end
  end
  arm(scores)
end
