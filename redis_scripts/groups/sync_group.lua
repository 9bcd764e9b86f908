#!lua flags=allow-oom
--[[ Take the leader's assignments, or wait for them (SyncGroup).

KEYS[1]   group          hash    state, generation, round, leader, protocol, deadlines
KEYS[2]   members        hash    member id -> its record
KEYS[3]   subscriptions  hash    member id -> its protocols and their metadata, packed
KEYS[4]   assignments    hash    member id -> the leader's bytes
KEYS[5]   protocols      hash    tallies of the members: who supports, offers, waits how long
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
ARGV[5]   member id
ARGV[6]   instance id, "" for none
ARGV[7]   generation
ARGV[8]   "=" and the protocol type, or "" where the request has none
ARGV[9]   "=" and the protocol, or "" where the request has none
ARGV[10]  lease of a parked sync, ms
ARGV[11...]  member id, assignment, one pair after the other; only the leader's count
Returns   {NONE, "parked", ms until something falls due or -1, protocol type, protocol}
          {NONE, "now", assignment, protocol type, protocol}; what groups/look_group returns follows where this
          sync, or what was overdue, ends the wait of others
          Safe to run twice: the first assignments stand.
Errors    {code}, after anything overdue was settled
          UNKNOWN_MEMBER_ID            not a member (any more), or no such group
          FENCED_INSTANCE_ID           another member id owns the instance
          ILLEGAL_GENERATION           another generation
          INCONSISTENT_GROUP_PROTOCOL  not the group's protocol type or protocol
          REBALANCE_IN_PROGRESS        a join phase is on
]]
-- @include lib/group_steps
local member_id, instance_id, generation = ARGV[5], ARGV[6], tonumber(ARGV[7])
local protocol_type, protocol, park_lease_ms = ARGV[8], ARGV[9], tonumber(ARGV[10])
-- @include lib/known_member
-- @include lib/note_synced

local function refuse(code)
  finish()
  return { code }
end

local function park(member)
  note_synced(member)
  hold(member_id, now + park_lease_ms)
  finish()
  return { ERROR.NONE, "parked", until_next(), g.protocol_type, g.protocol }
end

local function answer(member)
  note_synced(member)
  finish()
  local assignment = redis.call("HGET", assignments, member_id) or ""
  return { ERROR.NONE, "now", assignment, g.protocol_type, g.protocol, look_if_waking() }
end

-- The answer; none, but the leader, where its assignments are to be stored first.
local function enter()
  local member, code = known_member(member_id, instance_id)
  if code then return refuse(code) end
  if generation ~= g.generation then return refuse(ERROR.ILLEGAL_GENERATION) end
  if (protocol_type ~= "" and protocol_type ~= "=" .. g.protocol_type) or (protocol ~= "" and protocol ~= "=" .. g.protocol) then
    return refuse(ERROR.INCONSISTENT_GROUP_PROTOCOL)
  end
  if g.state == PREPARING then return refuse(ERROR.REBALANCE_IN_PROGRESS) end
  if g.state == STABLE then return answer(member) end
  if g.leader ~= member_id then return park(member) end
  return nil, member
end

local reply, leader
if not earliest_due() then
  reply, leader = enter()
  if reply then return reply end
end

-- Most syncs ended above. The rules are for what is overdue, and for the leader's assignments.
-- @include lib/classic_group
-- @include lib/assign
if not leader then
  settle()
  reply, leader = enter()
  if reply then return reply end
end
note_synced(leader)
assign()
return answer(leader)
