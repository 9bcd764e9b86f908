#!lua flags=allow-oom
--[[ Remove members that leave, or that an administrator removes; one rebalance for all (LeaveGroup).

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
ARGV[5]   client id of the requester
ARGV[6]   its host, "" if unknown
ARGV[7]   when the broker's lease ends, ms by Redis's clock; 0 for a caller without a lease
ARGV[8...]  member id, instance id, reason, one triple after the other
Returns   {NONE, code of each in order}
          Run twice, removed members are UNKNOWN_MEMBER_ID the second time, as in Kafka; nothing else changes.
Errors    COORDINATOR_NOT_AVAILABLE  the lease has ended
          of each: UNKNOWN_MEMBER_ID   neither a member nor a pending member id; or no such group
                   FENCED_INSTANCE_ID  another member id owns the instance
]]
-- @include lib/errors
-- @include lib/load_group
-- @include lib/member_record
-- @include lib/find_member
-- @include lib/remove_member
-- @include lib/join_phase
-- @include lib/rebalance
-- @include lib/expire_overdue
-- @include lib/finish
local group, asking_id, asking_host, lease_end = load_group(), ARGV[5], ARGV[6], tonumber(ARGV[7])
local first

local function remove(member_id, record, reason)
  local member = member_record.unpack(record)
  local itself = asking_host == "" or (asking_id == member.client_id and asking_host == member.client_host)
  local kind = itself and "member_left" or "member_removed"
  local by = itself and "" or asking_host .. " " .. string.sub(asking_id, 1, EVENT.NAME_MAX)
  remove_member(group, member_id, member, kind, { reason = reason, detail = by })
  first = first or { cause = kind, id = member_id, member = member, reason = reason }
  return ERROR.NONE
end

local function remove_instance(instance_id, reason)
  local owner_id = instance_id ~= "" and redis.call("HGET", group.keys.instances, instance_id)
  local record = owner_id and redis.call("HGET", group.keys.members, owner_id)
  if not record then return ERROR.UNKNOWN_MEMBER_ID end
  return remove(owner_id, record, reason)
end

local function leave(member_id, instance_id, reason)
  if member_id == "" then return remove_instance(instance_id, reason) end
  if redis.call("HDEL", group.keys.pending, member_id) == 1 then
    redis.call("ZREM", group.keys.sessions, member_id)
    return ERROR.NONE
  end
  local record, code = find_member(group, member_id, instance_id)
  if code then return code end
  return remove(member_id, record, reason)
end

if lease_end > 0 and group.now >= lease_end then return { ERROR.COORDINATOR_NOT_AVAILABLE } end
expire_overdue(group)
local codes = { ERROR.NONE }
for i = 8, #ARGV, 3 do
  codes[#codes + 1] = leave(ARGV[i], ARGV[i + 1], ARGV[i + 2])
end
if first and group.state ~= STATE.PREPARING then
  rebalance.start(group, first.cause, first.id, first.member, first.reason)
elseif group.state == STATE.PREPARING then
  join_phase.complete_if_all_joined(group)
end
finish(group)
return codes
