-- Wake whoever waits for this group, once a script, when it ends: a hint to look, never per joiner.
local waking = false

local function wake()
  waking = true
end

local function notify()
  if waking then redis.call("PUBLISH", wake_channel, ref .. ":" .. string.format("%.0f", g.generation) .. ":" .. g.state) end
end
