#!lua flags=allow-oom
--[[ Add audit events to their stream, and remove the oldest above its size.

A full server accepts it too: the stream is capped, and what fills the memory must not hide who did it.

KEYS[1]  audit-events  stream
ARGV[1]  approximate limit of its memory, bytes
ARGV[2]  and on: events, JSON
Returns  {NONE}; run twice, events are stored twice, which readers tolerate
Errors   none
]]
-- @include lib/errors
local events, most = KEYS[1], tonumber(ARGV[1])

for index = 2, #ARGV do
  redis.call("XADD", events, "*", "event", ARGV[index])
end
local size = redis.call("MEMORY", "USAGE", events)
if size > most then
  local length = redis.call("XLEN", events)
  redis.call("XTRIM", events, "MAXLEN", "~", math.floor(length * most / size * 0.9))
end
return { ERROR.NONE }
