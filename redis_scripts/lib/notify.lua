-- Notify the waiters of this group, once per script, at its end: a hint to refresh, not one message per join. A waiter
-- that has observed the named version ignores it. Version 0, which parked requests ignore, is for members with delayed
-- heartbeats only: a rebalance begins, or a member was replaced.
local waking, notifying = false, false

local function wake()
  waking = true
end

local function notify_members()
  notifying = true
end

local function notify()
  if not (waking or notifying) then return end
  local version = waking and g.version or 0
  redis.call("PUBLISH", wake_channel, string.format("%s:%.0f:%s:%.0f", ref, g.generation, g.state, version))
end

local function read_status_if_waking()
  if waking then return status_reply() end
end
