#!lua flags=allow-oom
--[[ Join or rejoin a classic group; the join waits for the other members (JoinGroup). Takes the joins of a tick, in
the order of their arrival.

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
ARGV[5]   number of joins
ARGV[6]   initial rebalance delay, ms
ARGV[7]   lease of a parked join, ms
ARGV[8]   maximum number of members
ARGV[9]   when the broker's lease ends, ms by Redis's clock, from its last renewal; 0 for a caller without a lease
ARGV[10...]  of each join:
          candidate member id, used if this join creates a member id; "" with a member id
          member id of the request, "" for a new member
          instance id, "" for none
          token of this join: joins with the same token are one join
          client id
          client host
          protocol type
          protocols in order of preference: uint16 length, name, uint32 length, metadata each
          "<id> <locator>" of the group, in case this join creates it; "" where it cannot
          the client's reason
          the client's software and its version (KIP-511), "" if it sent none
          numbers: session timeout, ms; rebalance timeout, ms; 1: a new dynamic member must rejoin with the id that it
          is given (KIP-394); 1: a restarted static leader is answered as leader (KIP-814); when the join came to the
          broker, ms by Redis's clock, negative if it is sent again, 0 if unknown
Returns   {NONE, ms until the group's next deadline or -1, answers}; the items of groups/read_group_status follow if one
          of these joins, or an overdue deadline, ends the wait of other requests. The answer to each join:
          {NONE, member id, "parked", generation, round}
          {NONE, member id, "now", generation, leader, protocol type, protocol, list members 0/1, skip assignment 0/1}
          Safe to run twice: the same token and candidates get the same answer. A member that was replaced in between
          is fenced, unless its successor was replaced as well; a new member removed in between is a new member again.
Errors    {code, member id of the reply} as the answer to a join, after overdue deadlines were applied
          COORDINATOR_NOT_AVAILABLE    the lease has ended; or the join was late, and its client, or the next process of
                                       its instance, joined through another broker meanwhile
          UNKNOWN_MEMBER_ID            not a member, or not any more
          FENCED_INSTANCE_ID           another member id owns the instance
          MEMBER_ID_REQUIRED           rejoin with this id
          INCONSISTENT_GROUP_PROTOCOL  another protocol type, or no protocol that all members support
          OTHER_TYPE                   a KIP-848 group with members
          GROUP_MAX_SIZE_REACHED       too many members or too much metadata; a late member is removed
]]
-- @include lib/errors
-- @include lib/load_group
-- @include lib/state
-- @include lib/deadlines
-- @include lib/member_record
-- @include lib/offers
-- @include lib/joins
-- @include lib/static_member
-- @include lib/is_join_overtaken
-- @include lib/join_rules
-- @include lib/expire_overdue
-- @include lib/waiters
-- @include lib/finish
local FIRST, PARTS = 10, 12
local FIRST_JOIN_MS = 300000 -- longest time that a new member's first join is parked, as in Kafka
local LIMITS = { initial_delay_ms = tonumber(ARGV[6]), first_join_ms = FIRST_JOIN_MS, park_lease_ms = tonumber(ARGV[7]),
  size_max = tonumber(ARGV[8]) }

-- The join whose parts begin at ARGV[first], and the id of its member if it is a new one.
local function read_join(first)
  local candidate, member_id, instance_id, token, client_id, client_host, protocol_type, subscription, group_candidate,
    reason, client_software, numbers = unpack(ARGV, first, first + PARTS - 1)
  local session_timeout_ms, rebalance_timeout_ms, id_required, static_leader_list, arrived_at =
    string.match(numbers, "^(%d+) (%d+) (%d) (%d) (-?%d+)$")
  return {
    limits = LIMITS, member_id = member_id, instance_id = instance_id, token = token, client_id = client_id,
    client_host = client_host, session_timeout_ms = tonumber(session_timeout_ms),
    rebalance_timeout_ms = tonumber(rebalance_timeout_ms), protocol_type = protocol_type, subscription = subscription,
    names = offers.names_of(subscription), id_required = id_required == "1", static_leader_list = static_leader_list == "1",
    group_candidate = group_candidate, reason = reason, client_software = client_software,
    arrived_at = tonumber(arrived_at),
  }, candidate
end

-- The answer to one join.
local function enter(group, join, candidate)
  local keys, is_new, instance_id = group.keys, join.member_id == "", join.instance_id
  if group.is_share or (group.is_streams and group.state ~= STATE.EMPTY) then
    return { ERROR.INCONSISTENT_GROUP_PROTOCOL, join.member_id }
  end
  if group.is_consumer and group.state ~= STATE.EMPTY then return { ERROR.OTHER_TYPE, join.member_id } end
  if group.absent and not is_new then return { ERROR.UNKNOWN_MEMBER_ID, join.member_id } end
  local owner_id
  if is_new and instance_id ~= "" and group.state ~= STATE.EMPTY then
    owner_id = redis.call("HGET", keys.instances, instance_id) or nil
  end
  if is_new then join.member_id = candidate end

  local known = member_record.unpack(redis.call("HGET", keys.members, join.member_id))
  if known and known.join_token == join.token then
    if known.told_leader ~= "" then return static_member.replaced(group, join, known) end
    return joins.parked(group, join.member_id, known.join_generation)
  end
  local member = known
  if owner_id then
    member = member_record.unpack(redis.call("HGET", keys.members, owner_id))
    if not member then owner_id = nil end -- Redis lost its record
  end
  if owner_id and member.replaced == join.member_id then return join_rules.refuse_fenced(group, join, owner_id) end
  if is_join_overtaken(group, join, known, owner_id and member) then
    return { ERROR.COORDINATOR_NOT_AVAILABLE, is_new and "" or join.member_id }
  end
  if not (join_rules.is_below_max_size(group, join, member) and join_rules.metadata_fits(group, join, member)) then
    return join_rules.refuse_full(group, owner_id or join.member_id, member)
  end
  if not offers.are_acceptable(group, join.protocol_type, join.names, known) then
    return { ERROR.INCONSISTENT_GROUP_PROTOCOL, is_new and "" or join.member_id }
  end
  if is_new then return join_rules.join_new(group, join, owner_id, member) end
  return join_rules.join_known(group, join, known)
end

local group, answers, lease_end = load_group(), {}, tonumber(ARGV[9])
if lease_end > 0 and group.now >= lease_end then
  for i = 1, tonumber(ARGV[5]) do
    answers[i] = { ERROR.COORDINATOR_NOT_AVAILABLE, ARGV[FIRST + PARTS * (i - 1) + 1] }
  end
  return { ERROR.NONE, -1, answers }
end
expire_overdue(group)
for i = 1, tonumber(ARGV[5]) do
  local join, candidate = read_join(FIRST + PARTS * (i - 1))
  answers[i] = enter(group, join, candidate)
end
finish(group)
return { ERROR.NONE, deadlines.until_next(group), answers, waiters.status_if_waking(group) }
