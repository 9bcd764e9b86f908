#!lua flags=allow-oom
--[[ Enter a classic group, or enter again; the join waits for the others (JoinGroup).

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
ARGV[5]   candidate member id, used where this join makes one
ARGV[6]   member id of the request, "" for a new member
ARGV[7]   instance id, "" for none
ARGV[8]   token of this join: the same token never joins twice
ARGV[9]   client id
ARGV[10]  client host
ARGV[11]  session timeout, ms
ARGV[12]  rebalance timeout, ms
ARGV[13]  protocol type
ARGV[14]  protocols in order of preference: uint16 length, name, uint32 length, metadata each
ARGV[15]  1: a new dynamic member must come back with the id that it is given (KIP-394)
ARGV[16]  1: a restarted static leader is told that it leads (KIP-814)
ARGV[17]  initial rebalance delay, ms
ARGV[18]  longest that a new member's first join is parked, ms
ARGV[19]  lease of a parked join, ms
ARGV[20]  most members
ARGV[21]  "<id> <locator>" of the group, should this join make it; "" where it cannot
ARGV[22]  the client's reason
Returns   {NONE, member id, "parked", generation, round, ms until something falls due or -1}; what groups/look_group
           returns follows where this join, or what was overdue, ends the wait of others
          {NONE, member id, "now", generation, leader, protocol type, protocol, list members 0/1, skip assignment 0/1}
          Safe to run twice: the same token and candidates get the same answer. Who was replaced in between is
          fenced, unless its successor was replaced as well; a new member that was removed in between is new again.
Errors    {code, member id of the reply}, after anything overdue was settled
          UNKNOWN_MEMBER_ID            not a member (any more)
          FENCED_INSTANCE_ID           another member id owns the instance
          MEMBER_ID_REQUIRED           come back with this id
          INCONSISTENT_GROUP_PROTOCOL  another protocol type, or no protocol that all support
          GROUP_MAX_SIZE_REACHED       full; a late member is removed
]]
-- @include lib/classic_group
-- @include lib/offered
local member_id, instance_id, token, client_id, client_host = ARGV[6], ARGV[7], ARGV[8], ARGV[9], ARGV[10]
local session_timeout_ms, rebalance_timeout_ms = tonumber(ARGV[11]), tonumber(ARGV[12])
local protocol_type, subscription, names = ARGV[13], ARGV[14], names_of(ARGV[14])
local id_required, static_leader_list = ARGV[15] == "1", ARGV[16] == "1"
local initial_delay_ms, first_join_ms, park_lease_ms = tonumber(ARGV[17]), tonumber(ARGV[18]), tonumber(ARGV[19])
local size_max, group_candidate, reason = tonumber(ARGV[20]), ARGV[21], ARGV[22]
-- @include lib/admit
-- @include lib/replace_member
-- @include lib/join_rules

settle()
local is_new = member_id == ""
if g.absent and not is_new then return { ERROR.UNKNOWN_MEMBER_ID, member_id } end
local owner = is_new and instance_id ~= "" and redis.call("HGET", instances, instance_id) or nil
if is_new then member_id = ARGV[5] end

local known = unpack_member(redis.call("HGET", members, member_id))
if known and known.join_token == token then
  if known.told_leader ~= "" then return replaced(known) end
  return parked(member_id, known.join_generation)
end
local holder = known
if owner then holder = unpack_member(redis.call("HGET", members, owner)) end
if owner and holder.replaced == member_id then return refuse_fenced(owner) end
if not has_room(holder) then return refuse_full(owner or member_id, holder) end
if not acceptable(protocol_type, names, known) then
  return refuse(ERROR.INCONSISTENT_GROUP_PROTOCOL, is_new and "" or member_id)
end
if is_new then return join_new(owner, holder) end
return join_known(known)
