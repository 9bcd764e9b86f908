#!lua flags=allow-oom
--[[ Apply whatever is overdue in one group, and correct its entries in the shard's index of deadlines.

KEYS[1]   group          hash    state, generation, round, leader, protocol, deadlines
KEYS[2]   members        hash    member id -> its record
KEYS[3]   subscriptions  hash    member id -> its protocols and their metadata, packed
KEYS[4]   assignments    hash    member id -> the leader's bytes
KEYS[5]   protocols      hash    counts over the members: protocols, offered lists, timeouts
KEYS[6]   instances      hash    static instance id -> member id
KEYS[7]   sessions       zset    member id (also pending) -> deadline or lease, ms
KEYS[8]   pending        hash    assigned member ids that have not joined yet -> client
KEYS[9]   groups         hash    group -> type, state, protocol type
KEYS[10]  deadlines      zset    kind|group -> earliest deadline, ms
KEYS[11]  events         stream  transitions of the shard's groups
ARGV[1]   group's name in the shard's keys
ARGV[2]   wake channel
ARGV[3]   maximum number of stored events, 0 for none
ARGV[4]   broker
Returns   {NONE, ms until the next deadline or -1}; safe to run twice: what is expired is not overdue any more
Errors    none
]]
-- @include lib/errors
-- @include lib/load_group
-- @include lib/deadlines
-- @include lib/member_record
-- @include lib/expire_overdue
-- @include lib/finish
local group = load_group()
local keys = group.keys

-- Each member and each pending id has a session. Without, after a loss, a dead member would never expire.
local function restore_sessions()
  if redis.call("ZCARD", keys.sessions) >= redis.call("HLEN", keys.members) + redis.call("HLEN", keys.pending) then return end
  local everyone = redis.call("HGETALL", keys.members)
  for i = 1, #everyone, 2 do
    if not redis.call("ZSCORE", keys.sessions, everyone[i]) then
      local member = member_record.unpack(everyone[i + 1])
      deadlines.set_session(group, everyone[i], group.now + member.session_timeout_ms)
    end
  end
  for _, member_id in ipairs(redis.call("HKEYS", keys.pending)) do
    if not redis.call("ZSCORE", keys.sessions, member_id) then
      deadlines.set_session(group, member_id, group.now + SWEEP.GAP_MS)
    end
  end
end

if group.absent then
  redis.call("ZREM", keys.deadlines, "session|" .. group.ref, "join|" .. group.ref, "sync|" .. group.ref)
  return { ERROR.NONE, -1 }
end
expire_overdue(group)
restore_sessions()
group.change.session_moved = true
local kind = group.is_consumer and "consumer " or group.is_share and "share " or group.is_streams and "streams " or "classic "
redis.call("HSET", keys.groups, group.ref, kind .. group.state .. " " .. group.protocol_type)
finish(group)
deadlines.index(group, "join", group.join_deadline)
deadlines.index(group, "sync", group.sync_deadline)
return { ERROR.NONE, deadlines.until_next(group) }
