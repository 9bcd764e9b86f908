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
-- @include lib/classic_group

-- Each member and each pending id has a session. Without, after a loss, a dead member would never expire.
local function restore_sessions()
  if redis.call("ZCARD", sessions) >= redis.call("HLEN", members) + redis.call("HLEN", pending) then return end
  local everyone = redis.call("HGETALL", members)
  for i = 1, #everyone, 2 do
    if not redis.call("ZSCORE", sessions, everyone[i]) then
      hold(g, everyone[i], now + unpack_member(everyone[i + 1]).session_timeout_ms)
    end
  end
  for _, member_id in ipairs(redis.call("HKEYS", pending)) do
    if not redis.call("ZSCORE", sessions, member_id) then hold(g, member_id, now + SWEEP_GAP_MS) end
  end
end

if g.absent then
  redis.call("ZREM", deadlines, "session|" .. ref, "join|" .. ref, "sync|" .. ref)
  return { ERROR.NONE, -1 }
end
expire_overdue()
restore_sessions()
g.change.session_moved = true
local kind = g.is_consumer and "consumer " or g.is_share and "share " or g.is_streams and "streams " or "classic "
redis.call("HSET", groups, ref, kind .. g.state .. " " .. g.protocol_type)
finish()
hint("join", g.join_deadline)
hint("sync", g.sync_deadline)
return { ERROR.NONE, until_next(g) }
