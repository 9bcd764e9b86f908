-- finish(group): the last step of every script that changes a group. Writes its hash, its name in the shard and the shard's
-- deadlines; notifies waiters.
-- @include lib/deadlines
-- @include lib/waiters
local function finish(group)
  if group.absent then return end
  local fields = group.change.fields
  if fields.version then group.version = group.version + 1 end
  local written, n = {}, 0
  for field in pairs(fields) do
    local value = group[field]
    written[n + 1], written[n + 2] = field, type(value) == "number" and string.format("%.0f", value) or value
    n = n + 2
  end
  if n > 0 then redis.call("HSET", group.keys.group, unpack(written)) end
  if fields.state or fields.protocol_type then
    redis.call("HSET", group.keys.groups, group.ref, "classic " .. group.state .. " " .. group.protocol_type)
  end
  if fields.join_deadline then deadlines.index(group, "join", group.join_deadline) end
  if fields.sync_deadline then deadlines.index(group, "sync", group.sync_deadline) end
  if group.change.session_moved then deadlines.index(group, "session", group.change.session_due) end
  waiters.publish(group)
end
