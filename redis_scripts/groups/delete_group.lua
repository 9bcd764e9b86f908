#!lua flags=allow-oom
--[[ Delete an empty group and its offsets. Assigned member ids that have not joined yet do not protect it.

KEYS[1]   group          hash    state, protocol_type, generation, subscribed and its generation, deadlines
KEYS[2]   members        hash    member id -> its record
KEYS[3]   subscriptions  hash    member id -> its protocols and their metadata
KEYS[4]   assignments    hash    member id -> bytes
KEYS[5]   protocols      hash    counts over the members: protocols, offered lists, timeouts
KEYS[6]   instances      hash    static instance id -> member id
KEYS[7]   sessions       zset    member id -> session deadline, ms
KEYS[8]   pending        hash    assigned member ids that have not joined yet
KEYS[9]   groups         hash    the shard's groups: name -> "<type> <state> <protocol type>"
KEYS[10]  deadlines      zset    the shard's index of deadlines
KEYS[11]  events         stream  the shard's events
KEYS[12]  offsets        hash    <topic>:<partition> -> JSON
KEYS[13]  staged         hash    offsets in open transactions
ARGV[1]   the group's name in the shard's keys
ARGV[2]   the shard's wake channel
ARGV[3]   maximum number of stored events
ARGV[4]   this broker, for events
ARGV[5]   when the broker's lease ends, ms by Redis's clock; 0 for a caller without a lease
Returns   {NONE}; run twice it answers GROUP_ID_NOT_FOUND, or deletes a group created in between: callers do not retry
Errors    GROUP_ID_NOT_FOUND  no such group, or a share group: share/delete_group
          NON_EMPTY_GROUP     it has members
          COORDINATOR_NOT_AVAILABLE  the lease has ended: the group may be another one, of the same name
]]
-- @include lib/errors
-- @include lib/load_group
-- @include lib/expire_overdue
-- @include lib/forget_group
-- @include lib/finish
local group, lease_end = load_group(), tonumber(ARGV[5])
if lease_end > 0 and group.now >= lease_end then return { ERROR.COORDINATOR_NOT_AVAILABLE } end
if group.absent or group.is_share then return { ERROR.GROUP_ID_NOT_FOUND } end

expire_overdue(group)
if group.state ~= STATE.EMPTY then
  finish(group)
  return { ERROR.NON_EMPTY_GROUP }
end
forget_group(group, KEYS[12], KEYS[13], "requested")
return { ERROR.NONE }
