-- Wake whoever waits for this group, once a script, when it ends: a hint to look, never per joiner. Who has seen
-- the version that it names need not look.
local waking = false

local function wake()
  waking = true
end

local function notify()
  if not waking then return end
  redis.call("PUBLISH", wake_channel, string.format("%s:%.0f:%s:%.0f", ref, g.generation, g.state, g.version))
end

local function look_if_waking()
  if waking then return look() end
end
