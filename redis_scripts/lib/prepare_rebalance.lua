-- Start a join phase (spec P7), in two steps: the request that causes it stores its own join between them. `reason` is
-- the client's text, nil or "" for none.
local function fail_parked_syncs()
  arm_synced()
  redis.call("DEL", assignments)
  wake(g)
end

local function begin_rebalance(cause, member_id, member, reason)
  if g.state == COMPLETING then fail_parked_syncs() end
  if g.state ~= EMPTY then notify_members(g) end
  put(g, "awaiting_sync", 0)
  put(g, "sync_deadline", 0)
  put(g, "round", g.round + 1)
  put(g, "joined_count", 0)
  event("rebalance_started", member_id, member, { cause = cause, reason = reason })
  local words = cause:gsub("_", " ")
  move(PREPARING, (reason or "") == "" and words or words .. ": " .. reason)
end

-- From Empty the first phase waits a while for more members, and never completes at once (KIP-134).
local function await_joins()
  if g.prev_state == EMPTY then
    put(g, "join_deadline", g.change.at + g.initial_delay)
    return
  end
  if all_joined() then return complete_join() end
  put(g, "join_deadline", g.change.at + max_rebalance_timeout())
end

local function prepare_rebalance(cause, member_id, member, reason)
  begin_rebalance(cause, member_id, member, reason)
  await_joins()
end
