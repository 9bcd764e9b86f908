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
          session timeout, ms, rebalance timeout, ms, its protocols and their metadata, packed, its assignment
Returns   {NONE, version}; run twice, the second run is STALE
Errors    STALE  the group changed since it was read
]]
-- @include lib/classic_group
-- @include lib/offered
local consumers, targets, consumer_sessions, revocations = KEYS[12], KEYS[13], KEYS[14], KEYS[15]
local FIRST, PARTS = 11 + 8 * ARGV[10], 9
-- The size of the metadata from which it is counted, as for JoinGroup, bytes.
local METADATA_COUNTED_FROM = 4096

local found = redis.call("HMGET", group, "id", "version", "write_id")
if not g.is_consumer or (found[1] or "") ~= ARGV[5] or g.version ~= tonumber(ARGV[6]) or (found[3] or "") ~= ARGV[7] then
  return { ERROR.STALE, g.version }
end

local function write_events()
  for i = 11, FIRST - 1, 8 do
    local who = { instance_id = ARGV[i + 2], client_id = ARGV[i + 3], client_host = ARGV[i + 4] }
    event(ARGV[i], ARGV[i + 1], who, { cause = ARGV[i + 5], reason = ARGV[i + 6], detail = ARGV[i + 7] })
  end
end

local function add(id, instance_id, client_id, client_host, client_software, session_ms, rebalance_ms, packed, assignment)
  local member = { session_timeout_ms = tonumber(session_ms), rebalance_timeout_ms = tonumber(rebalance_ms), join_round = 0,
    sync_generation = g.generation, added_round = 0, join_by = 0, joined_at = now, join_generation = 0, join_token = "",
    told_leader = "", instance_id = instance_id, client_id = client_id, client_host = client_host,
    client_software = client_software, protocols = names_of(packed),
    metadata_bytes = #packed > METADATA_COUNTED_FROM and #packed or nil }
  redis.call("HSET", members, id, pack_member(member))
  redis.call("HSET", subscriptions, id, packed)
  redis.call("HSET", assignments, id, assignment)
  if instance_id ~= "" then redis.call("HSET", instances, instance_id, id) end
  count_member(member, 1)
  hold(g, id, now + member.session_timeout_ms)
end

redis.call("UNLINK", members, subscriptions, assignments, protocols, instances, sessions, pending)
redis.call("UNLINK", consumers, targets, consumer_sessions, revocations)
redis.call("ZREM", deadlines, "consumer|" .. ref)
redis.call("HDEL", group, "target_epoch", "assignor", "topics", "topics_version")
first_session(g)
put(g, "type", "classic")
put(g, "generation", tonumber(ARGV[8]))
put(g, "assigned_generation", g.generation)
put(g, "awaiting_sync", 0)
put(g, "protocol_type", "consumer")
put(g, "leader", ARGV[FIRST])
put(g, "elected", ARGV[FIRST])
write_events()
for i = FIRST, #ARGV, PARTS do add(unpack(ARGV, i, i + PARTS - 1)) end
put(g, "protocol", select_protocol())
event("converted", nil, nil, { cause = "last_consumer_left", detail = "classic" })
move(STABLE)
if ARGV[9] ~= "1" then prepare_rebalance("last_consumer_left") end
g.change.session_moved = true
finish()
return { ERROR.NONE, g.version + 1 }
