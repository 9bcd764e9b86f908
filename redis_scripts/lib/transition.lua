-- Steps of the state machine common to the rules, and a member's activity in the present state.
local function touch()
  g.change.fields.version = true
end

local function move(state, reason)
  put(g, "prev_state", g.state)
  put(g, "state", state)
  put(g, "state_since", g.change.at)
  if reason then put(g, "reason", reason) end
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
