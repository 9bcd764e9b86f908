#!lua flags=allow-oom
--[[ Show the partitions up to a count to clients, after the caller created them.

KEYS[1]  topics  hash  <org>/<topic> -> record
KEYS[2]  info    hash  topics_version
ARGV[1]  <org>/<topic>
ARGV[2]  topic id, hex
ARGV[3]  number of partitions created
ARGV[4]  channel of topic changes
Returns  {NONE, record}; safe to run twice
Errors   UNKNOWN_TOPIC_OR_PARTITION  no topic of this id, or it is being deleted
]]
-- @include lib/errors
-- @include lib/topic
local topics, info = KEYS[1], KEYS[2]
local name, id, made, channel = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]

local record = topic.read(topics, name)
if not record or record.id ~= id or record.state == "deleting" then return { ERROR.UNKNOWN_TOPIC_OR_PARTITION } end
if record.state == "ready" and record.partitions >= made then
  return { ERROR.NONE, redis.call("HGET", topics, name) }
end

record.state = "ready"
record.partitions = math.max(record.partitions, made)
local text = topic.write(topics, name, record)
topic.announce(info, channel, name)
return { ERROR.NONE, text }
