#!lua
--[[ Reserve a name for a new topic, in state `creating`; the caller creates its partitions next, each in its own slot.

KEYS[1]  topics       hash  <org>/<topic> -> record
KEYS[2]  config       hash  the topic's configs that differ from the defaults
KEYS[3]  topic_names  hash  <org>/<topic with . as _> -> <org>/<topic>
KEYS[4]  info         hash  topics_version
KEYS[5]  quotas       hash  <org>/<quota>/<entity> -> its value
ARGV[1]  <org>/<topic>
ARGV[2]  the same with . as _, or "" where no other name can collide
ARGV[3]  topic id, hex
ARGV[4]  number of partitions
ARGV[5]  format
ARGV[6]  channel of topic changes
ARGV[7]  and on: config key, value, ...
Returns  {NONE, record}: another id means that the name is in use; safe to run twice
Errors   INVALID_TOPIC_EXCEPTION  a topic exists whose name differs only by . and _
         POLICY_VIOLATION         the organisation would be above its limit of topics or partitions
]]
-- @include lib/errors
-- @include lib/topic
-- @include lib/exceeds_org_limits
local topics, config, topic_names, info, quotas = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local name, plain_name, id, count, format, channel = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6]

local taken = redis.call("HGET", topics, name)
if taken then return { ERROR.NONE, taken } end
if plain_name ~= "" and redis.call("HEXISTS", topic_names, plain_name) == 1 then
  return { ERROR.INVALID_TOPIC_EXCEPTION }
end
if exceeds_org_limits(quotas, topics, name, count) then return { ERROR.POLICY_VIOLATION } end

if plain_name ~= "" then redis.call("HSET", topic_names, plain_name, name) end
redis.call("UNLINK", config)
if #ARGV > 6 then redis.call("HSET", config, unpack(ARGV, 7)) end
local record = {
  id = id, partitions = count, wanted = count, format = format, state = "creating", config = #ARGV > 6 and 1 or 0,
}
local text = topic.write(topics, name, record)
topic.announce(info, channel, name)
return { ERROR.NONE, text }
