#!lua flags=allow-oom
--[[ Store the leader's assignments, or wait for them (SyncGroup). Takes the syncs of a tick, each evaluated by itself.

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
ARGV[5]   number of syncs
ARGV[6]   lease of a parked sync, ms
ARGV[7...]  of each sync: member id, instance id ("" for none), generation, "=" and the protocol type, "=" and the
          protocol ("" if the request has none); after the last sync, if there are assignments, the owners of partitions
          as text, and member id, assignment, one pair after the other: used if the leader is among the syncs
Returns   {NONE, ms until the group's next deadline or -1, answers}; the items of groups/read_group_status follow if one
          of these syncs, or an overdue deadline, ends the wait of other requests. The answer to each sync:
          {NONE, "parked"}
          {NONE, "now", assignment, protocol type, protocol}
          Safe to run twice: the first assignments remain.
Errors    {code} as the answer to a sync, after overdue deadlines were applied
          UNKNOWN_MEMBER_ID            not a member, or not any more; or no such group
          FENCED_INSTANCE_ID           another member id owns the instance
          ILLEGAL_GENERATION           another generation
          INCONSISTENT_GROUP_PROTOCOL  not the group's protocol type or protocol
          REBALANCE_IN_PROGRESS        a join phase is open
          OTHER_TYPE                   a KIP-848 group, some of whose members may have joined by JoinGroup
]]
-- @include lib/group_steps
local PARTS, park_lease_ms = 5, tonumber(ARGV[6])
local position, assignments_from = 7, 7 + PARTS * ARGV[5]
local answers, member_id, instance_id, generation, protocol_type, protocol = {}
-- @include lib/known_member
-- @include lib/note_synced

local function take_next()
  member_id, instance_id, generation, protocol_type, protocol = unpack(ARGV, position, position + PARTS - 1)
  generation, position = tonumber(generation), position + PARTS
end

local function park(record)
  note_synced(record)
  hold(g, member_id, now + park_lease_ms)
  return { ERROR.NONE, "parked" }
end

local function answer(assignment)
  assignment = assignment or redis.call("HGET", assignments, member_id)
  return { ERROR.NONE, "now", assignment or "", g.protocol_type, g.protocol }
end

-- The answer of a Stable group; nil, nil, true if it has lost its assignments.
local function answer_late(record)
  local assignment = redis.call("HGET", assignments, member_id)
  if not assignment and redis.call("EXISTS", assignments) == 0 then return nil, nil, true end
  note_synced(record)
  return answer(assignment or "")
end

-- The answer to one sync; none, but the leader's record, if its assignments must be stored first; neither, but true, if
-- the stored assignments were lost.
local function enter()
  local record, code = record_of(member_id, instance_id)
  if code then return { g.is_consumer and code == ERROR.UNKNOWN_MEMBER_ID and ERROR.OTHER_TYPE or code } end
  if generation ~= g.generation then return { ERROR.ILLEGAL_GENERATION } end
  if (protocol_type ~= "" and protocol_type ~= "=" .. g.protocol_type) or (protocol ~= "" and protocol ~= "=" .. g.protocol) then
    return { ERROR.INCONSISTENT_GROUP_PROTOCOL }
  end
  if g.state == PREPARING then return { ERROR.REBALANCE_IN_PROGRESS } end
  if g.state == STABLE then return answer_late(record) end
  if g.leader ~= member_id then return park(record) end
  return nil, record
end

-- Answer the syncs in order; returns the leader's record when the leader must store its assignments, or true as the
-- second value when a rebalance must restore them; then that sync is entered again.
local function enter_all()
  while position < assignments_from do
    take_next()
    local answered, leader, lost = enter()
    if lost then position = position - PARTS end
    if leader or lost then return leader, lost end
    answers[#answers + 1] = answered
  end
end

local function reply()
  finish()
  return { ERROR.NONE, until_next(g), answers, read_status_if_waking(g) }
end

local overdue, leader, lost = earliest_due(g), nil, nil
if not overdue then
  leader, lost = enter_all()
  if not (leader or lost) then return reply() end
end

-- Most calls ended above. The rules are for overdue deadlines, and for the leader's assignments.
-- @include lib/classic_group
-- @include lib/assign
if overdue then
  expire_overdue()
  leader, lost = enter_all()
end
if lost then
  prepare_rebalance("assignments_lost")
  enter_all()
end
if leader then
  note_synced(leader)
  assign()
  answers[#answers + 1] = answer()
  enter_all()
end
return reply()
