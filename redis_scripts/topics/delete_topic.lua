#!lua flags=allow-oom
--[[ Hide a topic from clients; the caller removes partitions and offsets next, then `forget_topic` frees the name.

KEYS[1]  topics  hash  <org>/<topic> -> record
KEYS[2]  info    hash  topics_version
ARGV[1]  <org>/<topic>
ARGV[2]  topic id, hex
ARGV[3]  channel of topic changes
Returns  {NONE, record}; safe to run twice
Errors   UNKNOWN_TOPIC_OR_PARTITION  no topic of this id
]]
-- @include lib/errors
-- @include lib/topic
local topics, info = KEYS[1], KEYS[2]
local name, id, channel = ARGV[1], ARGV[2], ARGV[3]

local record = topic.read(topics, name)
if not record or record.id ~= id then return { ERROR.UNKNOWN_TOPIC_OR_PARTITION } end
if record.state == "deleting" then return { ERROR.NONE, redis.call("HGET", topics, name) } end

record.state = "deleting"
local text = topic.write(topics, name, record)
topic.announce(info, channel, name)
return { ERROR.NONE, text }
