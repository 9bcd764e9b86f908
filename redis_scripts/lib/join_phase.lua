-- The join phase ends (spec P9): remove late members, elect a leader, select a protocol, open the next generation.
-- Reads members, pending and the group's generation_floor; writes sessions, and every key of members that it removes.
-- @include lib/state
-- @include lib/member_record
-- @include lib/tallies
-- @include lib/sessions
-- @include lib/waiters
-- @include lib/add_event
-- @include lib/remove_member
-- @include lib/select_protocol
local join_phase = {}

local function drop_late(group)
  if group.joined_count == redis.call("HLEN", group.keys.members) then return end
  local everyone, joined = redis.call("HGETALL", group.keys.members), string.format(MEMBER.JOINED, group.round)
  for i = 1, #everyone, 2 do
    if not everyone[i + 1]:find(joined, 1, true) then
      local member = member_record.unpack(everyone[i + 1])
      if member.instance_id == "" then
        remove_member(group, everyone[i], member, "member_expired", { cause = "did_not_rejoin" })
      elseif everyone[i] == group.leader then
        state.put(group, "leader", "")
      end
    end
  end
end

-- The joined member that has been in the group the longest.
local function elect(group)
  local everyone, first, first_at = redis.call("HGETALL", group.keys.members), nil, nil
  for i = 1, #everyone, 2 do
    local member_id, member = everyone[i], member_record.unpack(everyone[i + 1])
    local earlier = not first or member.joined_at < first_at or (member.joined_at == first_at and member_id < first)
    if state.is_joined(group, member) and earlier then first, first_at = member_id, member.joined_at end
  end
  return first
end

local function become_empty(group)
  state.put(group, "protocol", "")
  state.put(group, "leader", "")
  state.put(group, "elected", "")
  redis.call("DEL", group.keys.assignments, group.keys.protocols)
  redis.call("HSET", group.keys.group, "subscribed", "[]", "subscribed_generation", string.format("%.0f", group.generation))
  add_event(group, "emptied")
  state.move(group, STATE.EMPTY)
end

-- Only absent static members are left: wait one rebalance timeout after the other, until their sessions end.
local function wait_on(group)
  local wait = math.max(tallies.max_rebalance_timeout(group), 1)
  local missed = math.max(math.floor((group.now - group.change.at) / wait), 0)
  state.put(group, "join_deadline", group.change.at + (missed + 1) * wait)
end

local function open_generation(group, size)
  if group.leader == "" then state.put(group, "leader", elect(group)) end
  sessions.start_all(group)
  state.put(group, "awaiting_sync", size)
  state.put(group, "sync_deadline", group.change.at + math.max(tallies.max_rebalance_timeout(group), 1))
  state.put(group, "protocol", select_protocol(group))
  state.put(group, "elected", group.leader)
  add_event(group, "barrier_joined", group.leader, nil, { detail = group.protocol })
  state.move(group, STATE.COMPLETING)
end

function join_phase.complete(group)
  state.put(group, "join_deadline", 0)
  drop_late(group)
  local size = redis.call("HLEN", group.keys.members)
  if size > 0 and group.joined_count == 0 then return wait_on(group) end
  local floor = tonumber(redis.call("HGET", group.keys.group, "generation_floor") or 0)
  state.put(group, "generation", math.max(group.generation, floor) + 1)
  state.put(group, "new_member_added", 0)
  waiters.wake(group)
  if size == 0 then return become_empty(group) end
  open_generation(group, size)
end

function join_phase.complete_if_all_joined(group)
  if group.prev_state ~= STATE.EMPTY and state.all_joined(group) then join_phase.complete(group) end
end
