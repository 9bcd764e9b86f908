-- Start a join phase (spec P7). Reads the number of members; writes sessions and assignments, and what `join_phase` writes.
-- @include lib/state
-- @include lib/tallies
-- @include lib/sessions
-- @include lib/waiters
-- @include lib/add_event
-- @include lib/join_phase
local rebalance = {}

local function fail_parked_syncs(group)
  sessions.start_synced(group)
  redis.call("DEL", group.keys.assignments)
  waiters.wake(group)
end

-- `reason` is the client's text, nil or "" for none. A request that causes the phase stores its own join between `begin`
-- and `await_joins`.
function rebalance.begin(group, cause, member_id, member, reason)
  if group.state == STATE.COMPLETING then fail_parked_syncs(group) end
  if group.state ~= STATE.EMPTY then waiters.notify_members(group) end
  state.put(group, "awaiting_sync", 0)
  state.put(group, "sync_deadline", 0)
  state.put(group, "round", group.round + 1)
  state.put(group, "joined_count", 0)
  add_event(group, "rebalance_started", member_id, member, { cause = cause, reason = reason })
  local words = cause:gsub("_", " ")
  state.move(group, STATE.PREPARING, (reason or "") == "" and words or words .. ": " .. reason)
end

-- From Empty the first phase waits a while for more members, and never completes at once (KIP-134).
function rebalance.await_joins(group)
  if group.prev_state == STATE.EMPTY then
    state.put(group, "join_deadline", group.change.at + group.initial_delay)
    return
  end
  if state.all_joined(group) then return join_phase.complete(group) end
  state.put(group, "join_deadline", group.change.at + tallies.max_rebalance_timeout(group))
end

function rebalance.start(group, cause, member_id, member, reason)
  rebalance.begin(group, cause, member_id, member, reason)
  rebalance.await_joins(group)
end
