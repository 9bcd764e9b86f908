-- A static member restarts: its new id replaces the old one (spec section 7).
local function rename(old_id, member)
  local assignment = redis.call("HGET", assignments, old_id)
  if assignment then redis.call("HSET", assignments, member_id, assignment) end
  redis.call("HDEL", assignments, old_id)
  redis.call("HDEL", subscriptions, old_id)
  redis.call("HDEL", members, old_id)
  redis.call("ZREM", sessions, old_id)
  hold(g, member_id, now + member.session_timeout_ms)
  redis.call("HSET", instances, instance_id, member_id)
  redis.call("HSET", subscriptions, member_id, subscription)
  if g.leader == old_id then put(g, "leader", member_id) end
  if g.elected == old_id then put(g, "elected", member_id) end
end

local function replaced(member)
  local list = static_leader_list and g.leader == member_id and 1 or 0
  return { ERROR.NONE, member_id, "now", g.generation, member.told_leader, g.protocol_type, g.protocol, list, list }
end

local function replace_member(old_id, member)
  local old_leader = g.leader
  if is_joined(member) or is_syncing(member) then wake(g) else notify_members(g) end
  rename(old_id, member)
  offer_again(member)
  local old = member.client_host .. " " .. old_id
  member.client_id, member.client_host, member.added_round, member.about = client_id, client_host, 0, nil
  member.client_software, member.replaced = client_software, old_id
  member.told_leader, member.join_token = static_leader_list and g.leader or old_leader, token
  redis.call("HSET", members, member_id, pack_member(member))
  touch()
  event("member_replaced", member_id, member, { reason = reason, detail = old })
  if g.state == STABLE and select_protocol() == g.protocol then return replaced(member) end
  return join_phase(member_id, member, "static_member_restarted")
end
