-- forget_group(group, offsets_key, staged_key, cause): delete a group. Writes its keys, its name in the shard and the shard's
-- deadlines.
-- @include lib/add_event
local function forget_group(group, offsets_key, staged_key, cause)
  local keys, ref = group.keys, group.ref
  redis.call("UNLINK", keys.group, keys.members, keys.subscriptions, keys.assignments, keys.protocols, keys.instances,
    keys.sessions, keys.pending, offsets_key, staged_key)
  redis.call("HDEL", keys.groups, ref)
  redis.call("ZREM", keys.deadlines, "session|" .. ref, "join|" .. ref, "sync|" .. ref, "retention|" .. ref)
  add_event(group, "deleted", nil, nil, { cause = cause })
end
