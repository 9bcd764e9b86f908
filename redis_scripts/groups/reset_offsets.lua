#!lua flags=allow-oom
--[[ Move or delete a group's offsets for an administrator, atomically with the removal of its members.

KEYS[1]   group          hash    state, generation, round, deadlines; sets commits_fenced_until, offsets_deleted_at, reset_by and reset_at
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
KEYS[12]  offsets        hash    <topic>:<partition> -> JSON
ARGV[1]   group's name in the shard's keys
ARGV[2]   wake channel
ARGV[3]   maximum number of stored events, 0 for none
ARGV[4]   broker
ARGV[5]   client id of the requester
ARGV[6]   its host
ARGV[7]   reason for the removal of members, "" to refuse a group with members
ARGV[8]   how long commits without a generation are refused after a removal, ms
ARGV[9]   "<id> <locator>" in case this call creates the group
ARGV[10]  when the broker's lease ends, ms by Redis's clock; 0 for a caller without a lease
ARGV[11...]  field, and its JSON without commit time and closing brace or "" to delete it, one pair after the other
Returns   {NONE, members removed}
          Run twice, the second run removes no member and writes the same offsets.
Errors    NON_EMPTY_GROUP     the group has members, and ARGV[7] is "" or it is a KIP-848 group
          GROUP_ID_NOT_FOUND  a share group
          COORDINATOR_NOT_AVAILABLE  the lease has ended: newer commits may have been stored through another broker
]]
-- @include lib/errors
-- @include lib/load_group
-- @include lib/member_record
-- @include lib/add_event
-- @include lib/remove_member
-- @include lib/join_phase
-- @include lib/rebalance
-- @include lib/expire_overdue
-- @include lib/create_empty_group
-- @include lib/note_offsets_left
-- @include lib/finish
local group, offsets = load_group(), KEYS[12]
local keys, asking_id, asking_host, reason = group.keys, ARGV[5], ARGV[6], ARGV[7]
local by = asking_host .. " " .. string.sub(asking_id, 1, EVENT.NAME_MAX)
local now_text, lease_end = string.format("%.0f", group.now), tonumber(ARGV[10])

local function remove_all()
  local removed, first = 0, nil
  local records = redis.call("HGETALL", keys.members)
  for i = 1, #records, 2 do
    local member = member_record.unpack(records[i + 1])
    remove_member(group, records[i], member, "member_removed", { reason = reason, detail = by })
    first, removed = first or { id = records[i], member = member }, removed + 1
  end
  for _, member_id in ipairs(redis.call("HKEYS", keys.pending)) do redis.call("ZREM", keys.sessions, member_id) end
  redis.call("DEL", keys.pending)
  if first and group.state ~= STATE.PREPARING then
    rebalance.start(group, "member_removed", first.id, first.member, reason)
  elseif group.state == STATE.PREPARING then
    join_phase.complete_if_all_joined(group)
  end
  return removed
end

-- The moved offsets, "<topic>:<partition> <from> <to> ...", of the first fields.
local function move_offsets()
  local moved = {}
  for i = 11, #ARGV, 2 do
    local field, entry = ARGV[i], ARGV[i + 1]
    local stored = redis.call("HGET", offsets, field)
    local from, to = stored and stored:match(OFFSET.OFFSET) or "-", entry:match(OFFSET.OFFSET) or "-"
    if entry == "" then
      redis.call("HDEL", offsets, field)
      redis.call("HSET", keys.group, "offsets_deleted_at", now_text)
    else
      redis.call("HSET", offsets, field, entry .. string.format(OFFSET.NEW_COMMIT_TIME, now_text) .. "}")
    end
    if from ~= to and #moved < EVENT.OFFSETS_MAX then moved[#moved + 1] = field .. " " .. from .. " " .. to end
  end
  return table.concat(moved, " ")
end

if lease_end > 0 and group.now >= lease_end then return { ERROR.COORDINATOR_NOT_AVAILABLE } end
if group.is_share then return { ERROR.GROUP_ID_NOT_FOUND } end
expire_overdue(group)
local removed = 0
local has_epochs = (group.is_consumer or group.is_streams) and group.state ~= STATE.EMPTY
if has_epochs or (redis.call("HLEN", keys.members) > 0 and reason == "") then
  finish(group)
  return { ERROR.NON_EMPTY_GROUP }
end
if reason ~= "" and not group.absent then
  removed = remove_all()
  if removed > 0 then
    redis.call("HSET", keys.group, "commits_fenced_until", string.format("%.0f", group.now + ARGV[8]))
  end
end
if group.absent and ARGV[11] then create_empty_group(keys.group, keys.groups, group.ref, ARGV[9], group.now) end
local moved = move_offsets()
note_offsets_left(keys.group, offsets)
if moved ~= "" then
  redis.call("HSET", keys.group, "reset_by", by, "reset_at", now_text)
  local client = { client_id = asking_id, client_host = asking_host }
  add_event(group, "offsets_reset", nil, client, { detail = moved, since = group.change.at })
end
finish(group)
return { ERROR.NONE, removed }
