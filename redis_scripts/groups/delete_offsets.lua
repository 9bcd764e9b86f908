#!lua flags=allow-oom
--[[ Forget a group's offsets of topics that it is not subscribed to (KIP-496).

KEYS[1]  group     hash  state, protocol_type, generation, subscribed, subscribed_generation, deadlines
KEYS[2]  sessions  zset  member id -> session deadline, ms
KEYS[3]  offsets   hash  <topic>:<partition> -> JSON
KEYS[4]  staged    hash  <producer id>:<topic>:<partition> -> offset inside an open transaction
KEYS[5]  unstable  hash  <topic>:<partition> -> how many transactions hold an offset
ARGV[1]  then for each topic: its name, count of partitions, and the partitions
Returns  {NONE, NONE or GROUP_SUBSCRIBED_TO_TOPIC for each topic ...}; safe to run twice
Errors   OVERDUE             a deadline of the group has passed: settle it, then ask again
         GROUP_ID_NOT_FOUND  no such group
         NON_EMPTY_GROUP     it has members, and their protocol type is not `consumer`
]]
-- @include lib/errors
-- @include lib/clock
local group, sessions, offsets, staged, unstable = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local now = now_ms()
local state, protocol_type, generation, subscribed, subscribed_generation, join_deadline, sync_deadline =
  unpack(redis.call("HMGET", group, "state", "protocol_type", "generation", "subscribed", "subscribed_generation",
    "join_deadline", "sync_deadline"))

local function passed(deadline)
  local at = tonumber(deadline or 0) or 0
  return at > 0 and at <= now
end

-- What members subscribed to: a set; or nil where it is not known, which protects every topic.
local function subscribed_topics()
  if state == "Empty" or protocol_type ~= "consumer" then return {} end
  if not subscribed or subscribed_generation ~= generation then return nil end
  local topics = {}
  for _, topic in ipairs(cjson.decode(subscribed)) do topics[topic] = true end
  return topics
end

local function forget(field)
  redis.call("HDEL", offsets, field)
  if redis.call("HDEL", unstable, field) == 0 then return end
  for _, name in ipairs(redis.call("HKEYS", staged)) do
    if string.sub(name, -#field - 1) == ":" .. field then redis.call("HDEL", staged, name) end
  end
end

if not state then return { ERROR.GROUP_ID_NOT_FOUND } end
if state ~= "Empty" then
  local earliest = redis.call("ZRANGE", sessions, 0, 0, "WITHSCORES")
  if passed(earliest[2]) or passed(join_deadline) or passed(sync_deadline) then return { ERROR.OVERDUE } end
  if protocol_type ~= "consumer" then return { ERROR.NON_EMPTY_GROUP } end
end

local protected = subscribed_topics()
local reply, at = { ERROR.NONE }, 1
while ARGV[at] do
  local topic, count = ARGV[at], tonumber(ARGV[at + 1])
  local refused = not protected or protected[topic]
  if not refused then
    for i = at + 2, at + 1 + count do forget(topic .. ":" .. ARGV[i]) end
  end
  reply[#reply + 1] = refused and ERROR.GROUP_SUBSCRIBED_TO_TOPIC or ERROR.NONE
  at = at + 2 + count
end
return reply
