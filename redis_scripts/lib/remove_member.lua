-- Remove one member; `more` has the cause, the event its time of membership. The caller does what follows (a rebalance,
-- a completed phase).
local function remove_member(member_id, member, kind, more)
  if is_joined(member) then
    put(g, "joined_count", g.joined_count - 1)
    wake(g)
  elseif is_syncing(member) then
    wake(g)
  elseif (g.state == COMPLETING or g.state == STABLE) and member.sync_generation ~= g.generation then
    put(g, "awaiting_sync", g.awaiting_sync - 1)
  end
  redis.call("HDEL", members, member_id)
  redis.call("HDEL", subscriptions, member_id)
  redis.call("HDEL", assignments, member_id)
  redis.call("ZREM", sessions, member_id)
  if member.instance_id ~= "" and redis.call("HGET", instances, member.instance_id) == member_id then
    redis.call("HDEL", instances, member.instance_id)
  end
  count_member(member, -1)
  if g.leader == member_id then put(g, "leader", "") end
  touch()
  more.since = member.joined_at
  event(kind, member_id, member, more)
end
