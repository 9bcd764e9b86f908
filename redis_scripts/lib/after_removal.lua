-- after_removal(group, cause, member_id, member): what follows when members were removed: the others rebalance, or the join
-- phase may be complete. Writes what `join_phase` and `rebalance` write.
-- @include lib/join_phase
-- @include lib/rebalance
local function after_removal(group, cause, member_id, member)
  if group.state == STATE.STABLE or group.state == STATE.COMPLETING then
    rebalance.start(group, cause, member_id, member)
  elseif group.state == STATE.PREPARING then
    join_phase.complete_if_all_joined(group)
  end
end
