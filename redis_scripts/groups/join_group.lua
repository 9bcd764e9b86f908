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
ARGV[7]   longest time that a new member's first join is parked, ms
ARGV[8]   lease of a parked join, ms
ARGV[9]   maximum number of members
ARGV[10...]  of each join:
          candidate member id, used if this join creates a member id
          member id of the request, "" for a new member
          instance id, "" for none
          token of this join: joins with the same token are one join
          client id
          client host
          session timeout, ms
          rebalance timeout, ms
          protocol type
          protocols in order of preference: uint16 length, name, uint32 length, metadata each
          1: a new dynamic member must rejoin with the id that it is given (KIP-394)
          1: a restarted static leader is answered as leader (KIP-814)
          "<id> <locator>" of the group, in case this join creates it; "" where it cannot
          the client's reason
          the client's software and its version (KIP-511), "" if it sent none
Returns   {NONE, ms until the group's next deadline or -1, answers}; the items of groups/read_group_status follow if one
          of these joins, or an overdue deadline, ends the wait of other requests. The answer to each join:
          {NONE, member id, "parked", generation, round}
          {NONE, member id, "now", generation, leader, protocol type, protocol, list members 0/1, skip assignment 0/1}
          Safe to run twice: the same token and candidates get the same answer. A member that was replaced in between
          is fenced, unless its successor was replaced as well; a new member removed in between is a new member again.
Errors    {code, member id of the reply} as the answer to a join, after overdue deadlines were applied
          UNKNOWN_MEMBER_ID            not a member, or not any more
          FENCED_INSTANCE_ID           another member id owns the instance
          MEMBER_ID_REQUIRED           rejoin with this id
          INCONSISTENT_GROUP_PROTOCOL  another protocol type, or no protocol that all members support
          OTHER_TYPE                   a KIP-848 group with members
          GROUP_MAX_SIZE_REACHED       too many members or too much metadata; a late member is removed
]]
-- @include lib/classic_group
-- @include lib/offered
local PARTS, FIRST = 15, 10
-- Limits of the metadata of one group's members, bytes: the size from which metadata is counted, and the largest sum.
local METADATA_COUNTED_FROM, METADATA_BYTES_MAX = 4096, 8 * 1024 * 1024
local initial_delay_ms, first_join_ms, park_lease_ms = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local size_max = tonumber(ARGV[9])
-- The join being processed.
local candidate, member_id, instance_id, token, client_id, client_host, session_timeout_ms, rebalance_timeout_ms
local protocol_type, subscription, names, id_required, static_leader_list, group_candidate, reason, client_software
-- @include lib/admit
-- @include lib/replace_member
-- @include lib/join_rules

local function take(position)
  candidate, member_id, instance_id, token, client_id, client_host, session_timeout_ms, rebalance_timeout_ms,
    protocol_type, subscription, id_required, static_leader_list, group_candidate, reason, client_software =
    unpack(ARGV, position, position + PARTS - 1)
  session_timeout_ms, rebalance_timeout_ms = tonumber(session_timeout_ms), tonumber(rebalance_timeout_ms)
  id_required, static_leader_list, names = id_required == "1", static_leader_list == "1", names_of(subscription)
end

-- The answer to the join being processed.
local function join()
  local is_new = member_id == ""
  if g.is_share or (g.is_streams and g.state ~= EMPTY) then return refuse(ERROR.INCONSISTENT_GROUP_PROTOCOL, member_id) end
  if g.is_consumer and g.state ~= EMPTY then return refuse(ERROR.OTHER_TYPE, member_id) end
  if g.absent and not is_new then return { ERROR.UNKNOWN_MEMBER_ID, member_id } end
  local owner = is_new and instance_id ~= "" and g.state ~= EMPTY and redis.call("HGET", instances, instance_id) or nil
  if is_new then member_id = candidate end

  local known = unpack_member(redis.call("HGET", members, member_id))
  if known and known.join_token == token then
    if known.told_leader ~= "" then return replaced(known) end
    return parked(member_id, known.join_generation)
  end
  local holder = known
  if owner then
    holder = unpack_member(redis.call("HGET", members, owner))
    if not holder then owner = nil end -- Redis lost its record
  end
  if owner and holder.replaced == member_id then return refuse_fenced(owner) end
  if not (is_below_max_size(holder) and metadata_fits(holder)) then return refuse_full(owner or member_id, holder) end
  if not acceptable(protocol_type, names, known) then
    return refuse(ERROR.INCONSISTENT_GROUP_PROTOCOL, is_new and "" or member_id)
  end
  if is_new then return join_new(owner, holder) end
  return join_known(known)
end

expire_overdue()
local answers = {}
for i = 1, tonumber(ARGV[5]) do
  take(FIRST + PARTS * (i - 1))
  answers[i] = join()
end
finish()
return { ERROR.NONE, until_next(g), answers, read_status_if_waking(g) }
