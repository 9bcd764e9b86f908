#!lua flags=allow-oom
--[[ Delete a group's offsets of a deleted topic, in any state of the group.

KEYS[1]  offsets  hash  <topic>:<partition> -> JSON
KEYS[2]  group    hash  has_offsets
ARGV[1]  topic id in hex: offsets of another topic of that name remain; "" for any
ARGV[2]  then the fields
Returns  {NONE, number deleted}; safe to run twice
Errors   none
]]
-- @include lib/errors
-- @include lib/note_offsets_left
local offsets, group = KEYS[1], KEYS[2]
local of_topic = ARGV[1] ~= "" and '"topic_id":"' .. ARGV[1] .. '"'

local gone = 0
for i = 2, #ARGV do
  local stored = redis.call("HGET", offsets, ARGV[i])
  if not (stored and of_topic) or stored:find(of_topic, 1, true) then
    gone = gone + redis.call("HDEL", offsets, ARGV[i])
  end
end
if gone > 0 then note_offsets_left(group, offsets) end
return { ERROR.NONE, gone }
