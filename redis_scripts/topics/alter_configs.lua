#!lua flags=allow-oom
--[[ Replace a topic's own configs, if they are unchanged since the change was planned.

KEYS[1]  topics  hash  <org>/<topic> -> record
KEYS[2]  config  hash  the topic's configs that differ from the defaults
KEYS[3]  info    hash  topics_version
ARGV[1]  <org>/<topic>
ARGV[2]  topic id, hex
ARGV[3]  version number of the configs that the change was planned on
ARGV[4]  channel of topic changes
ARGV[5]  and on: config key, value, ...: all own configs that the topic then has
Returns  {NONE, 1}, or {NONE, 0} if the configs have changed: refresh and plan again; a repeat gets 0
Errors   UNKNOWN_TOPIC_OR_PARTITION  no topic of this id, or it is being deleted
]]
-- @include lib/errors
-- @include lib/topic
local topics, config, info = KEYS[1], KEYS[2], KEYS[3]
local name, id, planned_on, channel = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]

local record = topic.read(topics, name)
if not record or record.id ~= id or record.state == "deleting" then return { ERROR.UNKNOWN_TOPIC_OR_PARTITION } end
if record.config ~= planned_on then return { ERROR.NONE, 0 } end

redis.call("UNLINK", config)
if #ARGV > 4 then redis.call("HSET", config, unpack(ARGV, 5)) end
record.config = record.config + 1
topic.write(topics, name, record)
topic.announce(info, channel, name)
return { ERROR.NONE, 1 }
