-- The last step of every script that changes a group: write its hash and its entries in the shard, notify waiters.
local function finish()
  if g.absent then return end
  if changed.version then put("version", g.version + 1) end
  local written, n = {}, 0
  for field in pairs(changed) do
    local value = g[field]
    written[n + 1], written[n + 2] = field, type(value) == "number" and string.format("%.0f", value) or value
    n = n + 2
  end
  if n > 0 then redis.call("HSET", group, unpack(written)) end
  if changed.state or changed.protocol_type then
    redis.call("HSET", groups, ref, "classic " .. g.state .. " " .. g.protocol_type)
  end
  if changed.join_deadline then hint("join", g.join_deadline) end
  if changed.sync_deadline then hint("sync", g.sync_deadline) end
  if session_moved then hint("session", session_due) end
  notify()
end
