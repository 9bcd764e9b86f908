-- A join phase begins (spec P7), in two steps: whoever causes it stores its own join between them.
local function fail_parked_syncs()
  local scores, everyone = {}, redis.call("HGETALL", members)
  for i = 1, #everyone, 2 do
    local session_ms, _, _, sync_generation = everyone[i + 1]:match(HOT)
    if tonumber(sync_generation) == g.generation then
      scores[#scores + 1] = string.format("%.0f", now + session_ms)
      scores[#scores + 1] = everyone[i]
    end
  end
  arm_sessions(scores)
  redis.call("DEL", assignments)
  wake()
end

local function begin_rebalance(reason, member_id, member)
  if g.state == COMPLETING then fail_parked_syncs() end
  put("awaiting_sync", 0)
  put("sync_deadline", 0)
  put("round", g.round + 1)
  put("joined_count", 0)
  event("rebalance_started", member_id, member, reason)
  move(PREPARING, reason)
end

-- From Empty the first phase waits a while for more members, and never completes on the spot (KIP-134).
local function await_joins()
  if g.prev_state == EMPTY then
    put("join_deadline", at + g.initial_delay)
    return
  end
  if all_joined() then return complete_join() end
  put("join_deadline", at + max_rebalance_timeout())
end

local function prepare_rebalance(reason, member_id, member)
  begin_rebalance(reason, member_id, member)
  await_joins()
end
