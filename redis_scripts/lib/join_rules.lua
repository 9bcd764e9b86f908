-- Whether a join is accepted, and how: the order of checks is Kafka's (spec 6.1 to 6.3). `join` is a JoinGroup request.
-- Reads and writes every key of the group.
-- @include lib/errors
-- @include lib/json
-- @include lib/state
-- @include lib/deadlines
-- @include lib/add_event
-- @include lib/remove_member
-- @include lib/after_removal
-- @include lib/joins
-- @include lib/static_member
local join_rules = {}

function join_rules.is_below_max_size(group, join, member)
  local size_max = join.limits.size_max
  if group.state == STATE.EMPTY then return true end
  if group.state == STATE.PREPARING then
    return (member and state.is_joined(group, member)) or group.joined_count < size_max
  end
  return member or redis.call("HLEN", group.keys.members) < size_max
end

function join_rules.metadata_fits(group, join, member)
  local more = (joins.counted_metadata(join) or 0) - (member and member.metadata_bytes or 0)
  if more <= 0 then return true end
  return tonumber(redis.call("HGET", group.keys.protocols, "metadata_bytes:large") or 0) + more <= METADATA.BYTES_MAX
end

-- If the group is too large, the members that rejoin last are removed (KAFKA-9885), and so are pending member ids.
function join_rules.refuse_full(group, member_id, member)
  if member then
    remove_member(group, member_id, member, "member_evicted", { cause = "group_full" })
  elseif redis.call("HDEL", group.keys.pending, member_id) == 1 then
    redis.call("ZREM", group.keys.sessions, member_id)
  end
  if member or group.state == STATE.PREPARING then after_removal(group, "member_evicted", member_id, member) end
  return { ERROR.GROUP_MAX_SIZE_REACHED, "" }
end

function join_rules.refuse_fenced(group, join, owner_id)
  local client = { instance_id = join.instance_id, client_id = join.client_id, client_host = join.client_host }
  add_event(group, "member_fenced", join.member_id, client, { reason = join.reason, detail = owner_id })
  return { ERROR.FENCED_INSTANCE_ID, join.member_id }
end

local function assign_id(group, join)
  local keys, member_id = group.keys, join.member_id
  if group.absent then joins.create_group(group, join) end
  if redis.call("HEXISTS", keys.members, member_id) == 0 then
    local pending = { client_id = join.client_id, client_host = join.client_host, handed_out = group.now }
    redis.call("HSET", keys.pending, member_id, json(pending))
    deadlines.set_session(group, member_id, group.now + join.session_timeout_ms)
  end
  return { ERROR.MEMBER_ID_REQUIRED, member_id }
end

-- A join without a member id; `owner` is the member that has its instance id, if any.
function join_rules.join_new(group, join, owner_id, owner)
  if owner_id then return static_member.replace(group, join, owner_id, owner) end
  if join.id_required and join.instance_id == "" then return assign_id(group, join) end
  if group.absent then joins.create_group(group, join) end
  return joins.add_member(group, join)
end

local function answer_now(group, join, is_leader)
  return { ERROR.NONE, join.member_id, "now", group.generation, group.leader, group.protocol_type, group.protocol,
    is_leader and 1 or 0, 0 }
end

local function join_member(group, join, member)
  if group.state == STATE.PREPARING then return joins.rejoin(group, join, member, "") end
  local is_leader = group.leader == join.member_id
  local same = redis.call("HGET", group.keys.subscriptions, join.member_id) == join.subscription
  if same and (group.state == STATE.COMPLETING or not is_leader) then return answer_now(group, join, is_leader) end
  return joins.rejoin(group, join, member, same and "leader_rejoined" or "subscription_changed")
end

-- A join with a member id; `member` is nil if it is of no member.
function join_rules.join_known(group, join, member)
  local member_id, instance_id = join.member_id, join.instance_id
  if not member and redis.call("HEXISTS", group.keys.pending, member_id) == 1 then
    if instance_id ~= "" then return { ERROR.UNKNOWN_MEMBER_ID, member_id } end
    return joins.add_member(group, join)
  end
  if instance_id ~= "" then
    local owner_id = redis.call("HGET", group.keys.instances, instance_id)
    if not owner_id then return { ERROR.UNKNOWN_MEMBER_ID, member_id } end
    if owner_id ~= member_id then return join_rules.refuse_fenced(group, join, owner_id) end
  end
  if not member then return { ERROR.UNKNOWN_MEMBER_ID, member_id } end
  return join_member(group, join, member)
end
