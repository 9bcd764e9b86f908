-- expire_overdue(group): apply what is overdue, in deadline order (ties: session, join, sync), each with the time of its
-- deadline; true if anything was. Every script that changes a classic group begins with it. Reads members, pending and
-- the sweep's marks; writes what `remove_member`, `join_phase` and `rebalance` write.
-- @include lib/state
-- @include lib/deadlines
-- @include lib/member_record
-- @include lib/tallies
-- @include lib/add_event
-- @include lib/remove_member
-- @include lib/after_removal
-- @include lib/join_phase
-- @include lib/rebalance
-- @include lib/sweep_resumed_at
-- A parked request holds its member's session by a lease; a lease that ended means that its broker is gone.
local function lose_lease(group, member_id, member)
  if state.is_joined(group, member) then
    state.put(group, "joined_count", group.joined_count - 1)
    member.join_round = 0
  else
    state.put(group, "awaiting_sync", group.awaiting_sync + 1)
    member.sync_generation = 0
  end
  redis.call("HSET", group.keys.members, member_id, member_record.pack(member))
  deadlines.set_session(group, member_id, group.now + math.max(member.session_timeout_ms, 1))
  state.touch(group)
  add_event(group, "lease_lost", member_id, member)
end

-- A member without contact since the sweep resumed gets a whole session timeout from then on.
local function grant_session(group, member_id, member)
  local granted = sweep_resumed_at(group.keys.deadlines, group.now) + member.session_timeout_ms
  if group.change.at >= granted or granted <= group.now then return false end
  deadlines.set_session(group, member_id, granted)
  return true
end

-- The same for a barrier that began before that time, while members are missing.
local function grant_barrier(group, field)
  local resumed_at = sweep_resumed_at(group.keys.deadlines, group.now)
  if group[field] - tallies.max_rebalance_timeout(group) >= resumed_at then return false end
  local granted = resumed_at + tallies.max_session_timeout(group)
  if group.change.at >= granted or granted <= group.now then return false end
  state.put(group, field, granted)
  return true
end

local function forget_session(group, member_id)
  redis.call("ZREM", group.keys.sessions, member_id)
  redis.call("HDEL", group.keys.pending, member_id)
  if group.is_consumer or group.is_streams then return end -- an id from before it had epochs; its members are elsewhere
  if group.state == STATE.PREPARING then return join_phase.complete_if_all_joined(group) end
  if group.state ~= STATE.EMPTY and redis.call("HLEN", group.keys.members) == 0 then rebalance.start(group, "members_lost") end
end

local expire = {}

function expire.session(group, member_id)
  local member = member_record.unpack(redis.call("HGET", group.keys.members, member_id))
  if not member then return forget_session(group, member_id) end
  if grant_session(group, member_id, member) then return end
  local is_joined = state.is_joined(group, member)
  local overstayed = is_joined and member.added_round == group.round and group.change.at >= member.join_by
  if (is_joined or state.is_syncing(group, member)) and not overstayed then return lose_lease(group, member_id, member) end
  local cause = overstayed and "first_join_unanswered" or "session_timed_out"
  remove_member(group, member_id, member, "member_expired", { cause = cause })
  after_removal(group, cause, member_id, member)
end

function expire.join(group)
  if group.prev_state == STATE.EMPTY and group.new_member_added == 1 and group.initial_remaining > 0 then
    local delay = math.min(group.initial_delay, group.initial_remaining)
    state.put(group, "new_member_added", 0)
    state.put(group, "initial_remaining", math.max(group.initial_remaining - delay, 0))
    state.put(group, "join_deadline", group.change.at + delay)
  elseif group.prev_state == STATE.EMPTY or state.all_joined(group) or not grant_barrier(group, "join_deadline") then
    join_phase.complete(group)
  end
end

function expire.sync(group)
  if grant_barrier(group, "sync_deadline") then return end
  state.put(group, "sync_deadline", 0)
  local everyone, removed_id, removed = redis.call("HGETALL", group.keys.members), nil, nil
  local synced = string.format(MEMBER.SYNCED, group.generation)
  for i = 1, #everyone, 2 do
    if not everyone[i + 1]:find(synced, 1, true) then
      removed_id, removed = everyone[i], member_record.unpack(everyone[i + 1])
      remove_member(group, removed_id, removed, "member_expired", { cause = "did_not_sync" })
    end
  end
  if removed then rebalance.start(group, "did_not_sync", removed_id, removed) end
end

local function expire_overdue(group)
  local kind, due, member_id = deadlines.earliest_due(group)
  if not kind then return false end
  while kind do
    group.change.at = due
    expire[kind](group, member_id)
    kind, due, member_id = deadlines.earliest_due(group)
  end
  group.change.at, group.change.session_moved = group.now, true
  return true
end
