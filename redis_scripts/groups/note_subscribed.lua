#!lua flags=allow-oom
--[[ Record which topics a generation's members subscribe to; the record of an older generation is ignored.

KEYS[1]  group  hash  generation, subscribed, subscribed_generation
ARGV[1]  generation
ARGV[2]  JSON list of topics, or "" if a member's subscription cannot be decoded
Returns  {NONE}; safe to run twice
Errors   ILLEGAL_GENERATION  the group has another generation
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
