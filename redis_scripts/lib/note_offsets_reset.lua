-- note_offsets_reset(group, by, first, entry_count): record a commit without a generation that moves the offsets of a group
-- which has had members: an offset reset. Further commits of that client are recorded only if they go back, or a minute
-- later: it may consume without membership. `group` has the group's keys and name, `by` is "<host> <client id>"; the
-- entries begin at ARGV[first]. Reads offsets and the group; writes the group and the shard's event stream.
local QUIET_MS = 60000

-- The moved offsets, "<topic>:<partition> <from> <to> ...", and whether any of them goes back.
local function moves(offsets, first, entry_count)
  local fields, moved, back = {}, {}, false
  for i = first, first + 2 * math.min(entry_count, EVENT.OFFSETS_MAX) - 2, 2 do fields[#fields + 1] = ARGV[i] end
  for i, stored in ipairs(redis.call("HMGET", offsets, unpack(fields))) do
    local from, to = stored and stored:match(OFFSET.OFFSET) or "-", ARGV[first + 2 * i - 1]:match(OFFSET.OFFSET)
    if from ~= to then moved[#moved + 1] = fields[i] .. " " .. from .. " " .. to end
    back = back or (from ~= "-" and tonumber(to) < tonumber(from))
  end
  return table.concat(moved, " "), back
end

local function note_offsets_reset(group, by, first, entry_count)
  if group.events_max == "0" then return end
  local moved, back = moves(group.offsets, first, entry_count)
  local last, now = redis.call("HMGET", group.key, "reset_by", "reset_at"), group.now
  if moved == "" or (not back and last[1] == by and now - last[2] < QUIET_MS) then return end
  local now_text = string.format("%.0f", now)
  redis.call("HSET", group.key, "reset_by", by, "reset_at", now_text)
  local host, client_id = by:match("^(%S*) (.*)$")
  redis.call("XADD", group.events, "MAXLEN", "~", group.events_max, "*", "time", now_text, "group", group.ref,
    "generation", group.generation, "kind", "offsets_reset", "cause", "", "member", "", "instance_id", "",
    "client_id", client_id:sub(1, EVENT.NAME_MAX), "host", host, "reason", "", "detail", moved, "members", "0",
    "broker", group.broker, "duration_ms", "0")
end
