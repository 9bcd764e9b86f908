-- Notify the waiters of a group, once per script, at its end: a hint to refresh, not one message per join. A waiter
-- that has observed the named version ignores it. Version 0, which parked requests ignore, is for members with delayed
-- heartbeats only: a rebalance begins, or a member was replaced. Reads no key; publishes to the wake channel.
-- @include lib/group_status
local waiters = {}

function waiters.wake(group)
  group.change.waking = true
end

function waiters.notify_members(group)
  group.change.notifying = true
end

function waiters.publish(group)
  local change = group.change
  if not (change.waking or change.notifying) then return end
  local version = change.waking and group.version or 0
  redis.call("PUBLISH", group.wake_channel,
    string.format("%s:%.0f:%s:%.0f", group.ref, group.generation, group.state, version))
end

function waiters.status_if_waking(group)
  if group.change.waking then return group_status(group) end
end
