#!lua flags=allow-oom
--[[ Renew the lease by which parked requests hold their members' sessions.

KEYS[1]   group          hash    state, generation, round, leader, protocol, deadlines
KEYS[2]   members        hash    member id -> its record
KEYS[3]   subscriptions  hash    member id -> its protocols and their metadata, packed
KEYS[4]   assignments    hash    member id -> the leader's bytes
KEYS[5]   protocols      hash    protocol -> how many members support it
KEYS[6]   instances      hash    static instance id -> member id
KEYS[7]   sessions       zset    member id (also pending) -> deadline or lease, ms
KEYS[8]   pending        hash    ids handed out and not yet back -> client
KEYS[9]   groups         hash    group -> type, state, protocol type
KEYS[10]  deadlines      zset    kind|group -> earliest deadline, ms
KEYS[11]  events         stream  transitions of the shard's groups
ARGV[1]   group's name in the shard's keys
ARGV[2]   wake channel
ARGV[3]   events kept, 0 none
ARGV[4]   broker
ARGV[5]   lease, ms
ARGV[6...]  member ids that this broker parks
Returns   {NONE}; safe to run twice
Errors    none
]]
-- @include lib/classic_group

settle()
local held = now + tonumber(ARGV[5])
for i = 6, #ARGV do
  local member = unpack_member(redis.call("HGET", members, ARGV[i]))
  if member and is_joined(member) and member.added_round == g.round then
    redis.call("ZADD", sessions, string.format("%.0f", math.min(held, member.join_by)), ARGV[i])
  elseif member and (is_joined(member) or is_syncing(member)) then
    redis.call("ZADD", sessions, string.format("%.0f", held), ARGV[i])
  end
end
finish()
return { ERROR.NONE }
