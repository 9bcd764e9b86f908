#!lua flags=allow-oom
--[[ Read a group for the requests that wait for it; overdue deadlines are applied first.

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
Returns   {NONE, state, generation, version, round, protocol type, protocol, leader of the last generation,
           generation of the assignments, ms until the next deadline or -1}; state "" if the group does not exist,
           "Converted" for a KIP-848 group with members.
          Safe to run twice: only overdue deadlines change anything.
Errors    none
]]
-- @include lib/errors
-- @include lib/load_group
-- @include lib/deadlines
-- @include lib/group_status
local group = load_group()
if group.absent then return { ERROR.NONE, "", 0, 0, 0, "", "", "", 0, -1 } end
-- Most calls find nothing overdue and end here, before the functions of the rules are defined, which is as expensive.
if not deadlines.earliest_due(group) then return { ERROR.NONE, group_status(group) } end

-- @include lib/expire_overdue
-- @include lib/finish
expire_overdue(group)
finish(group)
return { ERROR.NONE, group_status(group) }
