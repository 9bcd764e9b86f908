#!lua flags=allow-oom
--[[ Turn a KIP-848 group, whose last member of that protocol left, into a classic group of the members that joined by
JoinGroup, if the group is still the one that was decided on.

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
KEYS[12]  consumers      hash    member id -> its record
KEYS[13]  targets        hash    member id -> its target assignment
KEYS[14]  consumer_sessions  zset  member id -> session deadline, ms
KEYS[15]  revocations    zset    member id -> deadline to confirm a revocation or to rejoin, ms
ARGV[1]   group's name in the shard's keys
ARGV[2]   wake channel
ARGV[3]   maximum number of stored events, 0 for none
ARGV[4]   broker
ARGV[5]   own id of the group that was decided on
ARGV[6]   its version
ARGV[7]   the id of the write that it was read from
ARGV[8]   its generation from now on
ARGV[9]   1: every member has reached its target, so nobody needs to rejoin
ARGV[10]  count of the decision's events; eight values of each follow
ARGV[11...]  of each member: id, instance id ("" for none), client id, client host, name and version of its software,
          session timeout, ms, rebalance timeout, ms, its protocols and their metadata, packed, its assignment, its epoch
Returns   {NONE, version}; run twice, the second run is STALE
Errors    STALE  the group changed since it was read; or a member whose expiry was decided is not overdue any more
]]
-- @include lib/errors
-- @include lib/load_group
-- @include lib/state
-- @include lib/deadlines
-- @include lib/member_record
-- @include lib/tallies
-- @include lib/offers
-- @include lib/add_event
-- @include lib/select_protocol
-- @include lib/rebalance
-- @include lib/is_still_overdue
-- @include lib/finish
local group = load_group()
local keys = group.keys
local consumers, targets, consumer_sessions, revocations = KEYS[12], KEYS[13], KEYS[14], KEYS[15]
local FIRST, PARTS = 11 + 8 * ARGV[10], 10

local found = redis.call("HMGET", keys.group, "id", "version", "write_id")
local is_same = (found[1] or "") == ARGV[5] and group.version == tonumber(ARGV[6]) and (found[3] or "") == ARGV[7]
if not (group.is_consumer and is_same) then return { ERROR.STALE, group.version } end
for i = 11, FIRST - 1, 8 do
  local has_expired = ARGV[i] == "member_expired"
  if has_expired and not is_still_overdue(ARGV[i + 1], group.now, consumer_sessions, revocations) then
    return { ERROR.STALE, group.version }
  end
end

local function write_events()
  for i = 11, FIRST - 1, 8 do
    local client = { instance_id = ARGV[i + 2], client_id = ARGV[i + 3], client_host = ARGV[i + 4] }
    add_event(group, ARGV[i], ARGV[i + 1], client, { cause = ARGV[i + 5], reason = ARGV[i + 6], detail = ARGV[i + 7] })
  end
end

local function add(id, instance_id, client_id, client_host, client_software, session_ms, rebalance_ms, packed, assignment,
  epoch)
  local member = { session_timeout_ms = tonumber(session_ms), rebalance_timeout_ms = tonumber(rebalance_ms), join_round = 0,
    sync_generation = group.generation, added_round = 0, join_by = 0, joined_at = group.now, join_generation = 0,
    join_token = "", told_leader = "", instance_id = instance_id, client_id = client_id, client_host = client_host,
    client_software = client_software, protocols = offers.names_of(packed),
    metadata_bytes = #packed > METADATA.COUNTED_FROM and #packed or nil,
    converted_epoch = epoch ~= ARGV[8] and tonumber(epoch) or nil }
  redis.call("HSET", keys.members, id, member_record.pack(member))
  redis.call("HSET", keys.subscriptions, id, packed)
  redis.call("HSET", keys.assignments, id, assignment)
  if instance_id ~= "" then redis.call("HSET", keys.instances, instance_id, id) end
  tallies.count(group, member, 1)
  deadlines.set_session(group, id, group.now + member.session_timeout_ms)
end

redis.call("UNLINK", keys.members, keys.subscriptions, keys.assignments, keys.protocols, keys.instances, keys.sessions,
  keys.pending)
redis.call("UNLINK", consumers, targets, consumer_sessions, revocations)
redis.call("ZREM", keys.deadlines, "consumer|" .. group.ref)
redis.call("HDEL", keys.group, "target_epoch", "assignor", "topics", "topics_version", "held_bytes")
deadlines.first_session(group)
state.put(group, "type", "classic")
state.put(group, "generation", tonumber(ARGV[8]))
state.put(group, "assigned_generation", group.generation)
state.put(group, "awaiting_sync", 0)
state.put(group, "protocol_type", "consumer")
state.put(group, "leader", ARGV[FIRST])
state.put(group, "elected", ARGV[FIRST])
write_events()
for i = FIRST, #ARGV, PARTS do add(unpack(ARGV, i, i + PARTS - 1)) end
state.put(group, "protocol", select_protocol(group))
add_event(group, "converted", nil, nil, { cause = "last_consumer_left", detail = "classic" })
state.move(group, STATE.STABLE)
if ARGV[9] ~= "1" then rebalance.start(group, "last_consumer_left") end
group.change.session_moved = true
finish(group)
return { ERROR.NONE, group.version + 1 }
