-- What every changing script does last: write the group's hash, its hints in the shard, and wake the waiters.
local function hint(kind, deadline)
  if deadline > 0 then
    redis.call("ZADD", deadlines, string.format("%.0f", deadline), kind .. "|" .. ref)
  else
    redis.call("ZREM", deadlines, kind .. "|" .. ref)
  end
end

local function first_session()
  return tonumber(redis.call("ZRANGE", sessions, 0, 0, "WITHSCORES")[2] or 0)
end

local function until_next()
  local first = first_session()
  if g.join_deadline > 0 and (first == 0 or g.join_deadline < first) then first = g.join_deadline end
  if g.sync_deadline > 0 and (first == 0 or g.sync_deadline < first) then first = g.sync_deadline end
  return first == 0 and -1 or math.max(first - now, 0)
end

local function finish()
  if g.absent then return end
  if changed.version then put("version", g.version + 1) end
  local written = {}
  for field in pairs(changed) do
    local value = g[field]
    written[#written + 1] = field
    written[#written + 1] = type(value) == "number" and string.format("%.0f", value) or value
  end
  if #written > 0 then redis.call("HSET", group, unpack(written)) end
  if changed.state or changed.protocol_type then
    redis.call("HSET", groups, ref, "classic " .. g.state .. " " .. g.protocol_type)
  end
  if changed.join_deadline then hint("join", g.join_deadline) end
  if changed.sync_deadline then hint("sync", g.sync_deadline) end
  hint("session", first_session())
  notify()
end
