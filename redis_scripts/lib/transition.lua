-- Steps of the state machine common to the rules, and a member's activity in the present state.
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
