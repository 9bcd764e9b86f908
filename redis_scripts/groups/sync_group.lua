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
-- @include lib/errors
-- @include lib/load_group
-- @include lib/deadlines
-- @include lib/find_member
-- @include lib/is_converted_epoch
-- @include lib/note_synced
-- @include lib/waiters
-- @include lib/finish
local FIRST, PARTS = 7, 5
local group, park_lease_ms, answers = load_group(), tonumber(ARGV[6]), {}
local assignments_at = FIRST + PARTS * ARGV[5]

local function park(member_id, record)
  note_synced(group, member_id, record)
  deadlines.set_session(group, member_id, group.now + park_lease_ms)
  return { ERROR.NONE, "parked" }
end

local function answer(assignment)
  return { ERROR.NONE, "now", assignment or "", group.protocol_type, group.protocol }
end

-- The answer of a Stable group; nil, nil, true if it has lost its assignments.
local function answer_late(member_id, record)
  local assignment = redis.call("HGET", group.keys.assignments, member_id)
  if not assignment and redis.call("EXISTS", group.keys.assignments) == 0 then return nil, nil, true end
  note_synced(group, member_id, record)
  return answer(assignment)
end

-- The answer to one sync; none, but the leader's record, if its assignments must be stored first; neither, but true, if
-- the stored assignments were lost.
local function enter(member_id, instance_id, generation, protocol_type, protocol)
  local record, code = find_member(group, member_id, instance_id)
  if code then return { group.is_consumer and code == ERROR.UNKNOWN_MEMBER_ID and ERROR.OTHER_TYPE or code } end
  if tonumber(generation) ~= group.generation and not is_converted_epoch(group.state, group.generation, record, generation) then
    return { ERROR.ILLEGAL_GENERATION }
  end
  local type_fits = protocol_type == "" or protocol_type == "=" .. group.protocol_type
  if not type_fits or (protocol ~= "" and protocol ~= "=" .. group.protocol) then
    return { ERROR.INCONSISTENT_GROUP_PROTOCOL }
  end
  if group.state == STATE.PREPARING then return { ERROR.REBALANCE_IN_PROGRESS } end
  if group.state == STATE.STABLE then return answer_late(member_id, record) end
  if group.leader ~= member_id then return park(member_id, record) end
  return nil, record
end

-- Answer the syncs from ARGV[at] on, in order. It stops where the leader must store its assignments: returns where the
-- next sync is, and the leader's record; or where a rebalance must restore lost assignments: returns where that sync is,
-- which is entered again, nil, and true.
local function enter_all(at)
  while at < assignments_at do
    local answered, leader, lost = enter(unpack(ARGV, at, at + PARTS - 1))
    if lost then return at, nil, true end
    at = at + PARTS
    if leader then return at, leader end
    answers[#answers + 1] = answered
  end
  return at
end

local function reply()
  finish(group)
  return { ERROR.NONE, deadlines.until_next(group), answers, waiters.status_if_waking(group) }
end

local at, leader, lost = FIRST, nil, nil
local is_overdue = deadlines.earliest_due(group)
if not is_overdue then
  at, leader, lost = enter_all(at)
  if not (leader or lost) then return reply() end
end

-- Most calls ended above. The rules are for overdue deadlines, and for the leader's assignments.
-- @include lib/expire_overdue
-- @include lib/rebalance
-- @include lib/assign
if is_overdue then
  expire_overdue(group)
  at, leader, lost = enter_all(at)
end
if lost then
  rebalance.start(group, "assignments_lost")
  at = enter_all(at)
end
if leader then
  local leader_id = ARGV[at - PARTS]
  note_synced(group, leader_id, leader)
  assign(group, leader_id, assignments_at)
  answers[#answers + 1] = answer(redis.call("HGET", group.keys.assignments, leader_id))
  enter_all(at)
end
return reply()
