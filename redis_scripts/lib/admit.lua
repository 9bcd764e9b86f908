-- Add a member to the group, or let it rejoin; its join is parked until the phase ends (spec P4, P5).
local function lease_end(member)
  local lease = now + park_lease_ms
  return member.added_round == g.round and math.min(lease, member.join_by) or lease
end

local function park_join(member_id, member)
  if not is_joined(member) then put(g, "joined_count", g.joined_count + 1) end
  member.join_round, member.join_generation, member.join_token, member.told_leader = g.round, g.generation, token, ""
  redis.call("HSET", members, member_id, pack_member(member))
  redis.call("HSET", subscriptions, member_id, subscription)
  hold(g, member_id, lease_end(member))
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
  g.absent, g.is_consumer, g.is_share, g.is_streams = nil, nil, nil, nil
  for field, value in pairs(g) do
    if field ~= "change" then put(g, field, value) end
  end
  redis.call("PERSIST", group) -- of a lost group its generation_floor is left
  local id, locator, org = string.match(group_candidate, "^(%S+) (([^/]+)/%S+)$")
  put(g, "id", id)
  put(g, "org", org)
  put(g, "tier", "org")
  put(g, "locator", locator)
  put(g, "type", "classic")
  put(g, "created", now)
  put(g, "reason", "")
  put(g, "state_since", now)
  touch()
  event("created", nil, { client_id = client_id, client_host = client_host })
end

-- Redis lost the group's hash, but not its members: their generations must not be opened again.
local function forget_former_members()
  local newest = g.generation
  for _, record in ipairs(redis.call("HVALS", members)) do
    local member = unpack_member(record)
    newest = math.max(newest, member.join_generation + 1, member.sync_generation)
  end
  put(g, "generation", newest)
  redis.call("DEL", members, protocols, instances)
  notify_members(g)
  return 0
end

local function add_member(member_id)
  if g.is_consumer or g.is_streams then put(g, "type", "classic") end -- an empty group
  if g.state == EMPTY then
    put(g, "initial_delay", initial_delay_ms)
    put(g, "initial_remaining", math.max(rebalance_timeout_ms - initial_delay_ms, 0))
  elseif g.state == PREPARING and g.prev_state == EMPTY then
    put(g, "new_member_added", 1)
  end
  local size = redis.call("HLEN", members)
  if size > 0 and g.state == EMPTY then size = forget_former_members() end
  if size == 0 then
    redis.call("DEL", subscriptions, assignments)
    put(g, "protocol_type", protocol_type)
    put(g, "leader", member_id)
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
