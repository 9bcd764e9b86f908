-- A join phase begins (spec P7), in two steps: whoever causes it stores its own join between them.
local function fail_parked_syncs()
  arm_synced()
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
