-- Apply what is overdue, in deadline order (ties: session, join, sync), each with the time of its deadline.
local function after_removal(cause, member_id, member)
  if g.state == STABLE or g.state == COMPLETING then
    prepare_rebalance(cause, member_id, member)
  elseif g.state == PREPARING then
    maybe_complete()
  end
end

-- A parked request holds its member's session by a lease; a lease that ended means that its broker is gone.
local function lose_lease(member_id, member)
  if is_joined(member) then
    put(g, "joined_count", g.joined_count - 1)
    member.join_round = 0
  else
    put(g, "awaiting_sync", g.awaiting_sync + 1)
    member.sync_generation = 0
  end
  redis.call("HSET", members, member_id, pack_member(member))
  hold(g, member_id, now + math.max(member.session_timeout_ms, 1))
  touch()
  event("lease_lost", member_id, member)
end

-- A member without contact since the sweep resumed gets a whole session timeout from then on (see `lib/sweep_marks`).
local function grant_session(member_id, member)
  local granted = sweep_resumed_at() + member.session_timeout_ms
  if g.change.at >= granted or granted <= now then return false end
  hold(g, member_id, granted)
  return true
end

-- The same for a barrier that began before that time, while members are missing.
local function grant_barrier(field)
  local resumed_at, longest = sweep_resumed_at(), 0
  if g[field] - max_rebalance_timeout() >= resumed_at then return false end
  for timeout_ms in pairs(read_tallies().session_timeout_ms) do longest = math.max(longest, tonumber(timeout_ms)) end
  local granted = resumed_at + longest
  if g.change.at >= granted or granted <= now then return false end
  put(g, field, granted)
  return true
end

local EXPIRE = {}

function EXPIRE.session(member_id)
  local member = unpack_member(redis.call("HGET", members, member_id))
  if not member then
    redis.call("ZREM", sessions, member_id)
    redis.call("HDEL", pending, member_id)
    if g.state == PREPARING then return maybe_complete() end
    if g.state ~= EMPTY and redis.call("HLEN", members) == 0 then prepare_rebalance("members_lost") end
    return
  end
  if grant_session(member_id, member) then return end
  local overstayed = is_joined(member) and member.added_round == g.round and g.change.at >= member.join_by
  if (is_joined(member) or is_syncing(member)) and not overstayed then return lose_lease(member_id, member) end
  local cause = overstayed and "first_join_unanswered" or "session_timed_out"
  remove_member(member_id, member, "member_expired", { cause = cause })
  after_removal(cause, member_id, member)
end

function EXPIRE.join()
  if g.prev_state == EMPTY and g.new_member_added == 1 and g.initial_remaining > 0 then
    local delay = math.min(g.initial_delay, g.initial_remaining)
    put(g, "new_member_added", 0)
    put(g, "initial_remaining", math.max(g.initial_remaining - delay, 0))
    put(g, "join_deadline", g.change.at + delay)
  elseif g.prev_state == EMPTY or all_joined() or not grant_barrier("join_deadline") then
    complete_join()
  end
end

function EXPIRE.sync()
  if grant_barrier("sync_deadline") then return end
  put(g, "sync_deadline", 0)
  local everyone, removed_id, removed = redis.call("HGETALL", members), nil, nil
  local synced = string.format('"sync_generation":%.0f,', g.generation)
  for i = 1, #everyone, 2 do
    if not everyone[i + 1]:find(synced, 1, true) then
      removed_id, removed = everyone[i], unpack_member(everyone[i + 1])
      remove_member(removed_id, removed, "member_expired", { cause = "did_not_sync" })
    end
  end
  if removed then prepare_rebalance("did_not_sync", removed_id, removed) end
end

local function expire_overdue()
  local kind, due, member_id = earliest_due(g)
  if not kind then return false end
  while kind do
    g.change.at = due
    EXPIRE[kind](member_id)
    kind, due, member_id = earliest_due(g)
  end
  g.change.at, g.change.session_moved = now, true
  return true
end
