-- The steps of the state machine that rules share: move, count, hold the longest rebalance timeout.
local function touch()
  changed.version = true
end

local function move(state, reason)
  put("prev_state", g.state)
  put("state", state)
  put("state_since", at)
  if reason then put("reason", reason) end
  touch()
end

local function is_joined(member)
  return g.state == PREPARING and member.join_round == g.round
end

local function is_syncing(member)
  return g.state == COMPLETING and member.sync_generation == g.generation
end

local function all_joined()
  return g.joined_count == redis.call("HLEN", members) and redis.call("HLEN", pending) == 0
end

local function arm_sessions(scores)
  for i = 1, #scores, 900 do
    redis.call("ZADD", sessions, unpack(scores, i, math.min(i + 899, #scores)))
  end
end

local function max_rebalance_timeout()
  local longest = 0
  for _, record in ipairs(redis.call("HVALS", members)) do
    longest = math.max(longest, tonumber((select(2, record:match(HOT)))))
  end
  return longest
end
