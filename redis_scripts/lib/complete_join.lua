-- The join phase ends (spec P9): the late go, a leader and a protocol are chosen, the next generation opens.
local function drop_late(everyone)
  local staying, joined, leader_record = {}, {}, nil
  for i = 1, #everyone, 2 do
    local member_id, record = everyone[i], everyone[i + 1]
    local member = nil
    if tonumber((select(3, record:match(HOT)))) == g.round then
      joined[member_id] = record
    else
      member = unpack_member(record)
    end
    if member and member.instance_id == "" then
      remove_member(member_id, member, "member_expired", "did not rejoin in time")
    else
      staying[#staying + 1], staying[#staying + 2] = member_id, record
      if member_id == g.leader then leader_record = record end
    end
  end
  return staying, joined, leader_record
end

local function elect(joined)
  local first, first_at
  for member_id, record in pairs(joined) do
    local joined_at = unpack_member(record).joined_at
    if not first or joined_at < first_at or (joined_at == first_at and member_id < first) then
      first, first_at = member_id, joined_at
    end
  end
  return first
end

local function become_empty()
  put("protocol", "")
  put("leader", "")
  put("elected", "")
  redis.call("DEL", assignments, protocols)
  redis.call("HSET", group, "subscribed_generation", string.format("%.0f", g.generation))
  redis.call("HSET", group, "subscribed", "[]")
  move(EMPTY)
  event("emptied")
end

-- Only absent static members are left: wait on, one rebalance timeout after the other, until sessions end.
local function wait_on(longest)
  local wait = math.max(longest, 1)
  local missed = math.max(math.floor((now - at) / wait), 0)
  put("join_deadline", at + (missed + 1) * wait)
end

local function open_generation(staying)
  local scores, records, longest = {}, {}, 0
  for i = 1, #staying, 2 do
    local session_ms, rebalance_ms = staying[i + 1]:match(HOT)
    scores[i], scores[i + 1] = string.format("%.0f", now + session_ms), staying[i]
    records[#records + 1] = staying[i + 1]
    longest = math.max(longest, tonumber(rebalance_ms))
  end
  arm_sessions(scores)
  put("awaiting_sync", #records)
  put("sync_deadline", at + math.max(longest, 1))
  put("protocol", select_protocol(records, redis.call("HGET", members, g.leader)))
  put("elected", g.leader)
  event("barrier_joined", g.leader, nil, g.protocol)
  move(COMPLETING)
end

local function complete_join()
  put("join_deadline", 0)
  local staying, joined, leader_record = drop_late(redis.call("HGETALL", members))
  if #staying > 0 and next(joined) == nil then return wait_on(max_rebalance_timeout()) end
  put("generation", g.generation + 1)
  put("new_member_added", 0)
  wake()
  if #staying == 0 then return become_empty() end
  if not (leader_record and joined[g.leader]) then put("leader", elect(joined)) end
  open_generation(staying)
end

local function maybe_complete()
  if g.prev_state ~= EMPTY and all_joined() then complete_join() end
end
