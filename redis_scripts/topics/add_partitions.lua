#!lua
--[[ Record a topic's new partition count; the caller creates the partitions next, then `finish_topic` shows them.

KEYS[1]  topics  hash  <org>/<topic> -> record
KEYS[2]  info    hash  topics_version
KEYS[3]  quotas  hash  <org>/<quota>/<entity> -> its value
ARGV[1]  <org>/<topic>
ARGV[2]  topic id, hex
ARGV[3]  number of partitions requested, including the existing ones
ARGV[4]  channel of topic changes
Returns  {NONE, record}; a repeat before `finish_topic` finds its own request, one after it gets INVALID_PARTITIONS
Errors   UNKNOWN_TOPIC_OR_PARTITION  no topic of this id, or it is being deleted
         INVALID_PARTITIONS          not more than exist, or than are requested already
         POLICY_VIOLATION            the organisation would be above its limit of partitions
]]
-- @include lib/errors
-- @include lib/topic
-- @include lib/exceeds_org_limits
local topics, info, quotas = KEYS[1], KEYS[2], KEYS[3]
local name, id, wanted, channel = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]

local record = topic.read(topics, name)
if not record or record.id ~= id or record.state == "deleting" then return { ERROR.UNKNOWN_TOPIC_OR_PARTITION } end
if wanted <= record.partitions or wanted < record.wanted then return { ERROR.INVALID_PARTITIONS } end
if exceeds_org_limits(quotas, topics, name, wanted) then return { ERROR.POLICY_VIOLATION } end

record.wanted = wanted
local text = topic.write(topics, name, record)
topic.announce(info, channel, name)
return { ERROR.NONE, text }
