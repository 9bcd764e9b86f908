-- A static member restarts: its new id replaces the old one (spec section 7). Reads and writes every key of the group that
-- has the member.
-- @include lib/errors
-- @include lib/state
-- @include lib/deadlines
-- @include lib/member_record
-- @include lib/waiters
-- @include lib/add_event
-- @include lib/select_protocol
-- @include lib/joins
local static_member = {}

local function rename(group, join, old_id, member)
  local keys, member_id = group.keys, join.member_id
  local assignment = redis.call("HGET", keys.assignments, old_id)
  if assignment then redis.call("HSET", keys.assignments, member_id, assignment) end
  redis.call("HDEL", keys.assignments, old_id)
  redis.call("HDEL", keys.subscriptions, old_id)
  redis.call("HDEL", keys.members, old_id)
  redis.call("ZREM", keys.sessions, old_id)
  deadlines.set_session(group, member_id, group.now + member.session_timeout_ms)
  redis.call("HSET", keys.instances, join.instance_id, member_id)
  redis.call("HSET", keys.subscriptions, member_id, join.subscription)
  if group.leader == old_id then state.put(group, "leader", member_id) end
  if group.elected == old_id then state.put(group, "elected", member_id) end
end

-- The answer to a join that replaced a member of a Stable group.
function static_member.replaced(group, join, member)
  local list = join.static_leader_list and group.leader == join.member_id and 1 or 0
  return { ERROR.NONE, join.member_id, "now", group.generation, member.told_leader, group.protocol_type, group.protocol, list, list }
end

function static_member.replace(group, join, old_id, member)
  local old_leader, member_id = group.leader, join.member_id
  if state.is_joined(group, member) or state.is_syncing(group, member) then
    waiters.wake(group)
  else
    waiters.notify_members(group)
  end
  rename(group, join, old_id, member)
  joins.offer_again(group, join, member)
  local old = member.client_host .. " " .. old_id
  member.client_id, member.client_host, member.added_round, member.about = join.client_id, join.client_host, 0, nil
  member.client_software, member.replaced, member.replaced_at = join.client_software, old_id, group.now
  member.told_leader, member.join_token = join.static_leader_list and group.leader or old_leader, join.token
  redis.call("HSET", group.keys.members, member_id, member_record.pack(member))
  state.touch(group)
  add_event(group, "member_replaced", member_id, member, { reason = join.reason, detail = old })
  if group.state == STATE.STABLE and select_protocol(group) == group.protocol then
    return static_member.replaced(group, join, member)
  end
  return joins.enter_phase(group, join, member_id, member, "static_member_restarted")
end
