-- Add a member to the group, or let it rejoin; its join is parked until the phase ends (spec P4, P5).
local function lease_end(member)
  local lease = now + park_lease_ms
  return member.added_round == g.round and math.min(lease, member.join_by) or lease
end

local function park_join(member_id, member)
  if not is_joined(member) then put("joined_count", g.joined_count + 1) end
  member.join_round, member.join_generation, member.join_token, member.told_leader = g.round, g.generation, token, ""
  redis.call("HSET", members, member_id, pack_member(member))
  redis.call("HSET", subscriptions, member_id, subscription)
  hold(member_id, lease_end(member))
end

-- The size of the join's metadata that counts for the group's sum, bytes; nil for small metadata, which is not counted.
local function counted_metadata()
  return #subscription > METADATA_COUNTED_FROM and #subscription or nil
end

local function offer(member)
  member.protocols, member.metadata_bytes, member.about = names, counted_metadata(), nil
  member.session_timeout_ms, member.rebalance_timeout_ms = session_timeout_ms, rebalance_timeout_ms
  count_member(member, 1)
end

local function offer_again(member)
  local same = same_list(member.protocols, names) and member.session_timeout_ms == session_timeout_ms
  same = same and member.metadata_bytes == counted_metadata()
  if same and member.rebalance_timeout_ms == rebalance_timeout_ms then return end
  count_member(member, -1)
  offer(member)
end

local function parked(member_id, generation)
  return { ERROR.NONE, member_id, "parked", generation, g.round }
end

-- Park the join in the open phase, or in a phase that this join starts.
local function join_phase(member_id, member, cause)
  local begins, entered = g.state ~= PREPARING, g.generation
  if begins then begin_rebalance(cause, member_id, member, reason) end
  park_join(member_id, member)
  if begins then await_joins() else maybe_complete() end
  return parked(member_id, entered)
end

local function create_group()
  g.absent = nil
  for field, value in pairs(g) do put(field, value) end
  local id, locator, org = string.match(group_candidate, "^(%S+) (([^/]+)/%S+)$")
  put("id", id)
  put("org", org)
  put("tier", "org")
  put("locator", locator)
  put("type", "classic")
  put("created", now)
  put("reason", "")
  put("state_since", now)
  touch()
  event("created", nil, { client_id = client_id, client_host = client_host })
end

local function add_member(member_id)
  if g.state == EMPTY then
    put("initial_delay", initial_delay_ms)
    put("initial_remaining", math.max(rebalance_timeout_ms - initial_delay_ms, 0))
  elseif g.state == PREPARING and g.prev_state == EMPTY then
    put("new_member_added", 1)
  end
  if redis.call("HLEN", members) == 0 then
    put("protocol_type", protocol_type)
    put("leader", member_id)
  end
  local member = { join_round = 0, sync_generation = 0, join_by = now + first_join_ms, joined_at = now,
    instance_id = instance_id, client_id = client_id, client_host = client_host,
    client_software = client_software }
  member.added_round = g.state == PREPARING and g.round or g.round + 1
  offer(member)
  redis.call("HDEL", pending, member_id)
  if instance_id ~= "" then redis.call("HSET", instances, instance_id, member_id) end
  touch()
  event("member_joined", member_id, member, { reason = reason })
  return join_phase(member_id, member, "member_joined")
end

local function rejoin_member(member_id, member, cause)
  offer_again(member)
  return join_phase(member_id, member, cause)
end
