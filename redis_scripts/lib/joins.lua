-- Store a join: create the group, add a member or let it rejoin; the join is parked until the phase ends (spec P4, P5).
-- `join` is a JoinGroup request (groups/join_group.lua lists its fields). Reads and writes every key of the group.
-- @include lib/errors
-- @include lib/state
-- @include lib/deadlines
-- @include lib/member_record
-- @include lib/tallies
-- @include lib/offers
-- @include lib/waiters
-- @include lib/add_event
-- @include lib/join_phase
-- @include lib/rebalance
local joins = {}

local function lease_end(group, join, member)
  local lease = group.now + join.limits.park_lease_ms
  return member.added_round == group.round and math.min(lease, member.join_by) or lease
end

local function park(group, join, member_id, member)
  if not state.is_joined(group, member) then state.put(group, "joined_count", group.joined_count + 1) end
  member.join_round, member.join_generation, member.join_token = group.round, group.generation, join.token
  member.told_leader = ""
  if member.converted_epoch then member.converted_epoch, member.about = nil, nil end
  redis.call("HSET", group.keys.members, member_id, member_record.pack(member))
  redis.call("HSET", group.keys.subscriptions, member_id, join.subscription)
  deadlines.set_session(group, member_id, lease_end(group, join, member))
end

-- The size of the join's metadata and names that counts for the group's sum, bytes; nil if it is small and not counted.
function joins.counted_metadata(join)
  local size = #join.subscription + #join.member_id + #join.instance_id + #join.client_id
  return size > METADATA.COUNTED_FROM and size or nil
end

local function offer(group, join, member)
  member.protocols, member.metadata_bytes, member.about = join.names, joins.counted_metadata(join), nil
  member.session_timeout_ms, member.rebalance_timeout_ms = join.session_timeout_ms, join.rebalance_timeout_ms
  tallies.count(group, member, 1)
end

-- A member of the group offers what this join has.
function joins.offer_again(group, join, member)
  local same = offers.are_equal(member.protocols, join.names) and member.session_timeout_ms == join.session_timeout_ms
  same = same and member.metadata_bytes == joins.counted_metadata(join)
  if same and member.rebalance_timeout_ms == join.rebalance_timeout_ms then return end
  tallies.count(group, member, -1)
  offer(group, join, member)
end

function joins.parked(group, member_id, generation)
  return { ERROR.NONE, member_id, "parked", generation, group.round }
end

-- Park the join in the open phase, or in a phase that this join starts.
function joins.enter_phase(group, join, member_id, member, cause)
  local begins, entered = group.state ~= STATE.PREPARING, group.generation
  if begins then rebalance.begin(group, cause, member_id, member, join.reason) end
  park(group, join, member_id, member)
  if begins then rebalance.await_joins(group) else join_phase.complete_if_all_joined(group) end
  return joins.parked(group, member_id, entered)
end

function joins.create_group(group, join)
  local keys = group.keys
  group.absent, group.is_consumer, group.is_share, group.is_streams = nil, nil, nil, nil
  for _, field in ipairs({ "state", "prev_state", "protocol_type", "protocol", "leader", "elected", "generation", "version",
    "round", "joined_count", "awaiting_sync", "assigned_generation", "state_since", "join_deadline", "sync_deadline",
    "initial_delay", "initial_remaining", "new_member_added" }) do
    state.put(group, field, group[field])
  end
  redis.call("PERSIST", keys.group) -- of a lost group its generation_floor is left
  local id, locator, org = string.match(join.group_candidate, "^(%S+) (([^/]+)/%S+)$")
  state.put(group, "id", id)
  state.put(group, "org", org)
  state.put(group, "tier", "org")
  state.put(group, "locator", locator)
  state.put(group, "type", "classic")
  state.put(group, "created", group.now)
  state.put(group, "reason", "")
  state.put(group, "state_since", group.now)
  state.touch(group)
  add_event(group, "created", nil, { client_id = join.client_id, client_host = join.client_host })
end

-- Redis lost the group's hash, but not its members: their generations must not be opened again.
local function forget_former_members(group)
  local keys, newest = group.keys, group.generation
  for _, record in ipairs(redis.call("HVALS", keys.members)) do
    local member = member_record.unpack(record)
    newest = math.max(newest, member.join_generation + 1, member.sync_generation)
  end
  state.put(group, "generation", newest)
  redis.call("DEL", keys.members, keys.protocols, keys.instances)
  waiters.notify_members(group)
  return 0
end

-- Add the join's client as a member of the id `join.member_id`.
function joins.add_member(group, join)
  local keys, member_id = group.keys, join.member_id
  if group.is_consumer or group.is_streams then state.put(group, "type", "classic") end -- an empty group
  if group.state == STATE.EMPTY then
    local initial_delay_ms = join.limits.initial_delay_ms
    state.put(group, "initial_delay", initial_delay_ms)
    state.put(group, "initial_remaining", math.max(join.rebalance_timeout_ms - initial_delay_ms, 0))
  elseif group.state == STATE.PREPARING and group.prev_state == STATE.EMPTY then
    state.put(group, "new_member_added", 1)
  end
  local size = redis.call("HLEN", keys.members)
  if size > 0 and group.state == STATE.EMPTY then size = forget_former_members(group) end
  if size == 0 then
    redis.call("DEL", keys.subscriptions, keys.assignments)
    state.put(group, "protocol_type", join.protocol_type)
    state.put(group, "leader", member_id)
  end
  local member = { join_round = 0, sync_generation = 0, join_by = group.now + join.limits.first_join_ms, joined_at = group.now,
    instance_id = join.instance_id, client_id = join.client_id, client_host = join.client_host,
    client_software = join.client_software }
  member.added_round = group.state == STATE.PREPARING and group.round or group.round + 1
  offer(group, join, member)
  redis.call("HDEL", keys.pending, member_id)
  if join.instance_id ~= "" then redis.call("HSET", keys.instances, join.instance_id, member_id) end
  state.touch(group)
  add_event(group, "member_joined", member_id, member, { reason = join.reason })
  return joins.enter_phase(group, join, member_id, member, "member_joined")
end

function joins.rejoin(group, join, member, cause)
  joins.offer_again(group, join, member)
  return joins.enter_phase(group, join, join.member_id, member, cause)
end
