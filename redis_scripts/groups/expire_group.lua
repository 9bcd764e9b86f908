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

if g.absent then
  redis.call("ZREM", deadlines, "session|" .. ref, "join|" .. ref, "sync|" .. ref)
  return { ERROR.NONE, -1 }
end
expire_overdue()
session_moved = true
finish()
hint("join", g.join_deadline)
hint("sync", g.sync_deadline)
return { ERROR.NONE, until_next() }
