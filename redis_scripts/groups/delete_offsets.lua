#!lua flags=allow-oom
--[[ Delete a group's offsets of topics that it is not subscribed to (KIP-496).

KEYS[1]   group          hash    state, protocol_type, generation, subscribed and its generation, deadlines; sets
                         offsets_deleted_at
KEYS[2]   members        hash    member id -> its record
KEYS[3]   subscriptions  hash    member id -> its protocols and their metadata
KEYS[4]   assignments    hash    member id -> bytes
KEYS[5]   protocols      hash    counts over the members: protocols, offered lists, timeouts
KEYS[6]   instances      hash    static instance id -> member id
KEYS[7]   sessions       zset    member id -> session deadline, ms
KEYS[8]   pending        hash    assigned member ids that have not joined yet
KEYS[9]   groups         hash    the shard's groups: name -> "<type> <state> <protocol type>"
KEYS[10]  deadlines      zset    the shard's index of deadlines
KEYS[11]  events         stream  the shard's events
KEYS[12]  offsets        hash    <topic>:<partition> -> JSON; ":-1", the partitions with staged offsets
KEYS[13]  staged         hash    <producer id>:<topic>:<partition> -> JSON: dropped too
ARGV[1]   the group's name in the shard's keys
ARGV[2]   the shard's wake channel
ARGV[3]   maximum number of stored events
ARGV[4]   this broker, for events
ARGV[5]   when the broker's lease ends, ms by Redis's clock; 0 for a caller without a lease
ARGV[6]   when the request came to the broker, ms by Redis's clock; 0: unknown
ARGV[7]   then for each topic: its name, count of partitions, and the partitions
Returns   {NONE, NONE or GROUP_SUBSCRIBED_TO_TOPIC for each topic ...}; safe to run twice
Errors    GROUP_ID_NOT_FOUND  no such group
          NON_EMPTY_GROUP     it has members, and their protocol type is not `consumer`
          COORDINATOR_NOT_AVAILABLE  the lease has ended: newer offsets may have been committed through another broker;
                              or the script was late and one of these was. Nothing is deleted
]]
-- @include lib/errors
-- @include lib/load_group
-- @include lib/add_event
-- @include lib/is_late
-- @include lib/staged_list
-- @include lib/drop_staged
-- @include lib/expire_overdue
-- @include lib/note_offsets_left
-- @include lib/subscribed_topics
-- @include lib/finish
local group, offsets, staged = load_group(), KEYS[12], KEYS[13]
local lease_end, sent_at = tonumber(ARGV[5]), tonumber(ARGV[6])
if lease_end > 0 and group.now >= lease_end then return { ERROR.COORDINATOR_NOT_AVAILABLE } end
if group.absent or group.is_share then return { ERROR.GROUP_ID_NOT_FOUND } end

expire_overdue(group)
finish(group)
if group.state ~= STATE.EMPTY and group.protocol_type ~= "consumer" and not group.is_streams then
  return { ERROR.NON_EMPTY_GROUP }
end

local known = redis.call("HMGET", group.keys.group, "subscribed", "subscribed_generation")
local protected = subscribed_topics(group.state, group.protocol_type, group.generation, known[1], known[2])
local reply, next_arg, gone, fields, named = { ERROR.NONE }, 7, {}, {}, {}
while ARGV[next_arg] do
  local topic, count = ARGV[next_arg], tonumber(ARGV[next_arg + 1])
  local refused = not protected or protected[topic]
  if not refused then
    for i = next_arg + 2, next_arg + 1 + count do
      local field = topic .. ":" .. ARGV[i]
      named[field] = true
      fields[#fields + 1] = field
    end
  end
  reply[#reply + 1] = refused and ERROR.GROUP_SUBSCRIBED_TO_TOPIC or ERROR.NONE
  next_arg = next_arg + 2 + count
end

local function is_newer(key, field)
  local stored = redis.call("HGET", key, field)
  return stored and tonumber(string.match(stored, OFFSET.COMMIT_TIME) or 0) > sent_at
end

-- Whether one of the offsets was committed, or staged, since the request came.
local function is_overtaken()
  for _, field in ipairs(fields) do
    if is_newer(offsets, field) then return true end
  end
  local overtaken, list = false, staged_list.read(offsets, staged)
  staged_list.without(list, function(producer_id, partition)
    overtaken = overtaken or (named[partition] and is_newer(staged, producer_id .. ":" .. partition))
    return false
  end)
  return overtaken
end

if is_late(sent_at, group.now) and is_overtaken() then return { ERROR.COORDINATOR_NOT_AVAILABLE } end
for _, field in ipairs(fields) do
  if redis.call("HDEL", offsets, field) > 0 then gone[#gone + 1] = field end
end
drop_staged(offsets, staged, named)
if #fields > 0 then redis.call("HSET", group.keys.group, "offsets_deleted_at", string.format("%.0f", group.now)) end
if #gone > 0 then
  note_offsets_left(group.keys.group, offsets)
  add_event(group, "offsets_deleted", nil, nil, { detail = table.concat(gone, " ", 1, math.min(#gone, EVENT.OFFSETS_MAX)) })
end
return reply
