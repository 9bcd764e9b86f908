-- Delete a group: its keys, its name in the shard, its deadlines.
local function forget_group(cause)
  redis.call("UNLINK", group, members, subscriptions, assignments, protocols, instances, sessions, pending, offsets, KEYS[13])
  redis.call("HDEL", groups, ref)
  redis.call("ZREM", deadlines, "session|" .. ref, "join|" .. ref, "sync|" .. ref, "retention|" .. ref)
  event("deleted", nil, nil, { cause = cause })
end
