-- The last step of every script that changes a group: write its hash and its entries in the shard, notify waiters.
local function finish()
  if g.absent then return end
  if g.change.fields.version then put(g, "version", g.version + 1) end
  local written, n = {}, 0
  for field in pairs(g.change.fields) do
    local value = g[field]
    written[n + 1], written[n + 2] = field, type(value) == "number" and string.format("%.0f", value) or value
    n = n + 2
  end
  if n > 0 then redis.call("HSET", group, unpack(written)) end
  if g.change.fields.state or g.change.fields.protocol_type then
    redis.call("HSET", groups, ref, "classic " .. g.state .. " " .. g.protocol_type)
  end
  if g.change.fields.join_deadline then hint("join", g.join_deadline) end
  if g.change.fields.sync_deadline then hint("sync", g.sync_deadline) end
  if g.change.session_moved then hint("session", g.change.session_due) end
  notify(g)
end
