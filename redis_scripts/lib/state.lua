-- The fields of a group, and the state machine's steps common to the rules. Reads the number of members and of pending
-- member ids; writes nothing: `finish` writes the fields that `put` recorded.
local state = {}

function state.put(group, field, value)
  group[field], group.change.fields[field] = value, true
end

-- The group changed: its version rises at the end of the script.
function state.touch(group)
  group.change.fields.version = true
end

function state.move(group, next_state, reason)
  state.put(group, "prev_state", group.state)
  state.put(group, "state", next_state)
  state.put(group, "state_since", group.change.at)
  if reason then state.put(group, "reason", reason) end
  state.touch(group)
end

-- Whether the member joined the present join phase.
function state.is_joined(group, member)
  return group.state == STATE.PREPARING and member.join_round == group.round
end

-- Whether the member's SyncGroup of the present generation is parked.
function state.is_syncing(group, member)
  return group.state == STATE.COMPLETING and member.sync_generation == group.generation
end

function state.all_joined(group)
  return group.joined_count == redis.call("HLEN", group.keys.members) and redis.call("HLEN", group.keys.pending) == 0
end
