#!lua flags=allow-oom
--[[ Free the name of a topic whose partitions are removed.

KEYS[1]  topics       hash  <org>/<topic> -> record
KEYS[2]  config       hash  the topic's configs
KEYS[3]  topic_names  hash  <org>/<topic with . as _> -> <org>/<topic>
KEYS[4]  info         hash  topics_version
ARGV[1]  <org>/<topic>
ARGV[2]  the same with . as _, or "" where no other name can collide
ARGV[3]  topic id, hex
ARGV[4]  channel of topic changes
Returns  {NONE}; safe to run twice
Errors   none
]]
-- @include lib/errors
-- @include lib/topic
local topics, config, topic_names, info = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local name, plain_name, id, channel = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local record = topic.read(topics, name)
if not record or record.id ~= id or record.state ~= "deleting" then return { ERROR.NONE } end

redis.call("HDEL", topics, name)
redis.call("UNLINK", config)
if plain_name ~= "" then redis.call("HDEL", topic_names, plain_name) end
topic.announce(info, channel, name)
return { ERROR.NONE }
