-- acknowledge_commit(records, meta, readers, group, before): acknowledge, in a Redis group, every entry up to the id before
-- a committed offset; returns how many, nil if the log is deleted. The Redis group is created if it does not exist. If it
-- stands below the commit, because the group was read without it, it is moved there; also if it stands above and nothing
-- is pending, because the commit went back. Reads meta; writes readers and the stream's Redis groups.
-- @include lib/stream_ids
-- @include lib/record_group
local function acknowledge_commit(records, meta, readers, group, before)
  if redis.call("HGET", meta, "state") ~= "ready" then return nil end
  redis.call("HSETNX", readers, group, "")
  local position = record_group.position(records, group)
  if not position then
    redis.call("XGROUP", "CREATE", records, group, before, "MKSTREAM")
    return 0
  end
  local acknowledged = record_group.acknowledge_until(records, group, before)
  if record_group.differs(records, position, before) then
    if stream_ids.is_above(before, position) or redis.call("XPENDING", records, group)[1] == 0 then
      redis.call("XGROUP", "SETID", records, group, before)
    end
  end
  return acknowledged
end
