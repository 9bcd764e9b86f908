-- Whether a join is accepted, and how: the order of checks is Kafka's (spec 6.1 to 6.3).
local function refuse(code, reply_member_id)
  return { code, reply_member_id }
end

local function is_below_max_size(holder)
  if g.state == EMPTY then return true end
  if g.state == PREPARING then return (holder and is_joined(holder)) or g.joined_count < size_max end
  return holder or redis.call("HLEN", members) < size_max
end

local function metadata_fits(holder)
  local more = (counted_metadata() or 0) - (holder and holder.metadata_bytes or 0)
  if more <= 0 then return true end
  return tonumber(redis.call("HGET", protocols, "metadata_bytes:large") or 0) + more <= METADATA_BYTES_MAX
end

-- If the group is too large, the members that rejoin last are removed (KAFKA-9885), and so are pending member ids.
local function refuse_full(holder_id, holder)
  if holder then
    remove_member(holder_id, holder, "member_evicted", { cause = "group_full" })
  elseif redis.call("HDEL", pending, holder_id) == 1 then
    redis.call("ZREM", sessions, holder_id)
  end
  if g.state == PREPARING then maybe_complete() end
  return refuse(ERROR.GROUP_MAX_SIZE_REACHED, "")
end

local function hand_out_id()
  if g.absent then create_group() end
  if redis.call("HEXISTS", members, member_id) == 0 then
    redis.call("HSET", pending, member_id, json({ client_id = client_id, client_host = client_host, handed_out = now }))
    hold(g, member_id, now + session_timeout_ms)
  end
  return refuse(ERROR.MEMBER_ID_REQUIRED, member_id)
end

local function join_new(owner, owner_record)
  if owner then return replace_member(owner, owner_record) end
  if id_required and instance_id == "" then return hand_out_id() end
  if g.absent then create_group() end
  return add_member(member_id)
end

local function answer_now(is_leader)
  return { ERROR.NONE, member_id, "now", g.generation, g.leader, g.protocol_type, g.protocol, is_leader and 1 or 0, 0 }
end

local function join_member(member)
  if g.state == PREPARING then return rejoin_member(member_id, member, "") end
  local is_leader = g.leader == member_id
  local same = redis.call("HGET", subscriptions, member_id) == subscription
  if same and (g.state == COMPLETING or not is_leader) then return answer_now(is_leader) end
  return rejoin_member(member_id, member, same and "leader_rejoined" or "subscription_changed")
end

local function refuse_fenced(current)
  local who = { instance_id = instance_id, client_id = client_id, client_host = client_host }
  event("member_fenced", member_id, who, { reason = reason, detail = current })
  return refuse(ERROR.FENCED_INSTANCE_ID, member_id)
end

local function join_known(member)
  if not member and redis.call("HEXISTS", pending, member_id) == 1 then
    if instance_id ~= "" then return refuse(ERROR.UNKNOWN_MEMBER_ID, member_id) end
    return add_member(member_id)
  end
  if instance_id ~= "" then
    local current = redis.call("HGET", instances, instance_id)
    if not current then return refuse(ERROR.UNKNOWN_MEMBER_ID, member_id) end
    if current ~= member_id then return refuse_fenced(current) end
  end
  if not member then return refuse(ERROR.UNKNOWN_MEMBER_ID, member_id) end
  return join_member(member)
end
