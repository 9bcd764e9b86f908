-- Notify the waiters of this group, once per script, at its end: a hint to refresh, not one message per join. A waiter
-- that has observed the named version ignores it. Version 0, which parked requests ignore, is for members with delayed
-- heartbeats only: a rebalance begins, or a member was replaced.
local function wake(g)
  g.change.waking = true
end

local function notify_members(g)
  g.change.notifying = true
end

local function notify(g)
  if not (g.change.waking or g.change.notifying) then return end
  local version = g.change.waking and g.version or 0
  redis.call("PUBLISH", wake_channel, string.format("%s:%.0f:%s:%.0f", ref, g.generation, g.state, version))
end

local function read_status_if_waking(g)
  if g.change.waking then return status_reply() end
end
