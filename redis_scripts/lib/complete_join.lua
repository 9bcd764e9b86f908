-- The join phase ends (spec P9): remove late members, elect a leader, select a protocol, open the next generation.
local function drop_late()
  if g.joined_count == redis.call("HLEN", members) then return end
  local everyone, joined = redis.call("HGETALL", members), string.format('"join_round":%.0f,', g.round)
  for i = 1, #everyone, 2 do
    if not everyone[i + 1]:find(joined, 1, true) then
      local member = unpack_member(everyone[i + 1])
      if member.instance_id == "" then
        remove_member(everyone[i], member, "member_expired", { cause = "did_not_rejoin" })
      elseif everyone[i] == g.leader then
        put(g, "leader", "")
      end
    end
  end
end

-- The joined member that has been in the group the longest.
local function elect()
  local everyone, first, first_at = redis.call("HGETALL", members), nil, nil
  for i = 1, #everyone, 2 do
    local member_id, member = everyone[i], unpack_member(everyone[i + 1])
    local earlier = not first or member.joined_at < first_at or (member.joined_at == first_at and member_id < first)
    if is_joined(member) and earlier then first, first_at = member_id, member.joined_at end
  end
  return first
end

local function become_empty()
  put(g, "protocol", "")
  put(g, "leader", "")
  put(g, "elected", "")
  redis.call("DEL", assignments, protocols)
  redis.call("HSET", group, "subscribed", "[]", "subscribed_generation", string.format("%.0f", g.generation))
  event("emptied")
  move(EMPTY)
end

-- Only absent static members are left: wait one rebalance timeout after the other, until their sessions end.
local function wait_on()
  local wait = math.max(max_rebalance_timeout(), 1)
  local missed = math.max(math.floor((now - g.change.at) / wait), 0)
  put(g, "join_deadline", g.change.at + (missed + 1) * wait)
end

local function open_generation(size)
  if g.leader == "" then put(g, "leader", elect()) end
  arm_all()
  put(g, "awaiting_sync", size)
  put(g, "sync_deadline", g.change.at + math.max(max_rebalance_timeout(), 1))
  put(g, "protocol", select_protocol())
  put(g, "elected", g.leader)
  event("barrier_joined", g.leader, nil, { detail = g.protocol })
  move(COMPLETING)
end

local function complete_join()
  put(g, "join_deadline", 0)
  drop_late()
  local size = redis.call("HLEN", members)
  if size > 0 and g.joined_count == 0 then return wait_on() end
  put(g, "generation", math.max(g.generation, tonumber(redis.call("HGET", group, "generation_floor") or 0)) + 1)
  put(g, "new_member_added", 0)
  wake(g)
  if size == 0 then return become_empty() end
  open_generation(size)
end

local function maybe_complete()
  if g.prev_state ~= EMPTY and all_joined() then complete_join() end
end
