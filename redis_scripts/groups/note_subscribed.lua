#!lua flags=allow-oom
--[[ Note which topics a generation's members subscribe to; an older generation's note is ignored.

KEYS[1]  group  hash  generation, subscribed, subscribed_generation
ARGV[1]  generation
ARGV[2]  JSON list of topics, or "" where a member's subscription cannot be read
Returns  {NONE}; safe to run twice
Errors   ILLEGAL_GENERATION  the group has moved on
]]
-- @include lib/errors
local group, generation, topics = KEYS[1], ARGV[1], ARGV[2]

if redis.call("HGET", group, "generation") ~= generation then return { ERROR.ILLEGAL_GENERATION } end

if topics == "" then
  redis.call("HDEL", group, "subscribed", "subscribed_generation")
else
  redis.call("HSET", group, "subscribed", topics, "subscribed_generation", generation)
end
return { ERROR.NONE }
