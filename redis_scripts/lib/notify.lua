-- Wake whoever waits for this group, once a script, when it ends: a hint to look, never per joiner. Who has seen
-- the version that it names need not look. It names version 0, which is news to no parked request, where only those
-- whose heartbeats wait for their answer have something to learn: that a rebalance begins, or who was replaced.
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
