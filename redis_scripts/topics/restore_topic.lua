#!lua flags=allow-oom
--[[ Store a topic's record again that Redis has lost, although the topic was not deleted (a key was removed by hand).

The caller has cached the record, and its partition 0 still exists: a deletion would have removed that first.

KEYS[1]  topics       hash  <org>/<topic> -> record
KEYS[2]  topic_names  hash  <org>/<topic with . as _> -> <org>/<topic>
KEYS[3]  config       hash  the topic's configs
KEYS[4]  info         hash  topics_version
ARGV[1]  <org>/<topic>
ARGV[2]  the same with . as _, or "" where no other name can collide
ARGV[3]  record
ARGV[4]  channel of topic changes
ARGV[5]  and on: config key, value, ...: stored if the topic's configs are lost too
Returns  {NONE, 1 if stored, 0 if the name has a record}; safe to run twice
Errors   none
]]
-- @include lib/errors
-- @include lib/topic
local topics, topic_names, config, info = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local name, plain_name, record, channel = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

if redis.call("HSETNX", topics, name, record) == 0 then return { ERROR.NONE, 0 } end
if plain_name ~= "" then redis.call("HSETNX", topic_names, plain_name, name) end
if #ARGV > 4 and redis.call("EXISTS", config) == 0 then redis.call("HSET", config, unpack(ARGV, 5)) end
topic.announce(info, channel, name)
return { ERROR.NONE, 1 }
