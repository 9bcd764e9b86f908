-- remove_member(group, member_id, member, kind, more): remove one member; `kind` and `more` are the event's. The caller does
-- what follows (a rebalance, a completed phase). Reads instances; writes every key of the group that has the member.
-- @include lib/state
-- @include lib/tallies
-- @include lib/waiters
-- @include lib/add_event
local function remove_member(group, member_id, member, kind, more)
  local keys = group.keys
  if state.is_joined(group, member) then
    state.put(group, "joined_count", group.joined_count - 1)
    waiters.wake(group)
  elseif state.is_syncing(group, member) then
    waiters.wake(group)
  elseif (group.state == STATE.COMPLETING or group.state == STATE.STABLE) and member.sync_generation ~= group.generation then
    state.put(group, "awaiting_sync", group.awaiting_sync - 1)
  end
  redis.call("HDEL", keys.members, member_id)
  redis.call("HDEL", keys.subscriptions, member_id)
  redis.call("HDEL", keys.assignments, member_id)
  redis.call("ZREM", keys.sessions, member_id)
  if member.instance_id ~= "" and redis.call("HGET", keys.instances, member.instance_id) == member_id then
    redis.call("HDEL", keys.instances, member.instance_id)
  end
  tallies.count(group, member, -1)
  if group.leader == member_id then state.put(group, "leader", "") end
  state.touch(group)
  more.since = member.joined_at
  add_event(group, kind, member_id, member, more)
end
