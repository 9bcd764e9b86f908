#!lua flags=allow-oom
--[[ Delete offsets that are past their retention (KIP-211), and the group once it is empty and has no offsets.

KEYS[1]   group          hash    state, protocol_type, generation, subscribed and its generation, deadlines
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
KEYS[12]  offsets        hash    <topic>:<partition> -> JSON
KEYS[13]  staged         hash    offsets in open transactions
ARGV[1]   the group's name in the shard's keys
ARGV[2]   the shard's wake channel
ARGV[3]   maximum number of stored events
ARGV[4]   this broker, for events
ARGV[5]   retention, ms
ARGV[6]   then fields of `offsets` to examine: one page of them; the caller iterates over all
Returns   {NONE, number deleted, 1 if the group's state permits expiry of offsets, 1 if the group was deleted}
          safe to run twice
Errors    GROUP_ID_NOT_FOUND  no such group
]]
-- @include lib/errors
-- @include lib/load_group
-- @include lib/add_event
-- @include lib/expire_overdue
-- @include lib/forget_group
-- @include lib/note_offsets_left
-- @include lib/subscribed_topics
-- @include lib/finish
local group, offsets = load_group(), KEYS[12]
if group.absent or group.is_share then return { ERROR.GROUP_ID_NOT_FOUND } end -- a share group lasts until it is deleted

expire_overdue(group)
finish(group)
local retention_ms = tonumber(ARGV[5])
if redis.call("HEXISTS", offsets, OFFSET.UNSTABLE) == 1 then return { ERROR.NONE, 0, 0, 0 } end -- a transaction is open

-- The topics whose offsets never expire; nil if that is every topic.
local function kept_topics()
  if group.state == STATE.EMPTY then return {} end
  if group.protocol_type ~= "consumer" or group.state ~= STATE.STABLE then return nil end
  local known = redis.call("HMGET", group.keys.group, "subscribed", "subscribed_generation")
  return subscribed_topics(group.state, group.protocol_type, group.generation, known[1], known[2])
end

-- Retention of a group that had members starts when it becomes empty; that of a later admin commit, at the commit.
local function expired(stored)
  local expire_time = tonumber(stored:match(OFFSET.EXPIRE_TIME))
  if expire_time then return group.now >= expire_time end
  local since = tonumber(stored:match(OFFSET.LAST_COMMIT_TIME))
  if group.state == STATE.EMPTY and group.protocol_type ~= "" then since = math.max(since, group.state_since) end
  return group.now - since >= retention_ms
end

local kept, gone, fields = kept_topics(), 0, {}
for i = 6, kept and #ARGV or 0 do
  local stored = redis.call("HGET", offsets, ARGV[i])
  if stored and not kept[ARGV[i]:match("^(.*):")] and expired(stored) then
    gone = gone + redis.call("HDEL", offsets, ARGV[i])
    if #fields < EVENT.OFFSETS_MAX then fields[#fields + 1] = ARGV[i] end
  end
end

if gone > 0 then add_event(group, "offsets_expired", nil, nil, { detail = table.concat(fields, " ") }) end
-- A group that had members keeps its id and generation for the retention time, even without offsets.
local is_retained = group.protocol_type ~= "" and group.now - group.state_since < retention_ms
local nothing_left = redis.call("EXISTS", offsets, group.keys.pending) == 0
if gone > 0 then note_offsets_left(group.keys.group, offsets) end
if group.state == STATE.EMPTY and nothing_left and not is_retained then
  forget_group(group, offsets, KEYS[13], "nothing_left")
  return { ERROR.NONE, gone, 1, 1 }
end
return { ERROR.NONE, gone, kept and 1 or 0, 0 }
