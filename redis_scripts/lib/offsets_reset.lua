-- A commit without a generation that moves the offsets of a group which has had members is an offset reset. Further
-- commits of that client are recorded only if they go back, or a minute later: it may consume without membership.
local NAMED_MAX, NAME_MAX, QUIET_MS, OFFSET = 50, 255, 60000, '^{"offset":(-?%d+)'

-- The moved offsets, "<topic>:<partition> <from> <to> ...", and whether any of them goes back.
local function moves(first, entry_count)
  local fields, moved, back = {}, {}, false
  for i = first, first + 2 * math.min(entry_count, NAMED_MAX) - 2, 2 do fields[#fields + 1] = ARGV[i] end
  for i, stored in ipairs(call("HMGET", offsets, unpack(fields))) do
    local from, to = stored and stored:match(OFFSET) or "-", ARGV[first + 2 * i - 1]:match(OFFSET)
    if from ~= to then moved[#moved + 1] = fields[i] .. " " .. from .. " " .. to end
    back = back or (from ~= "-" and tonumber(to) < tonumber(from))
  end
  return table.concat(moved, " "), back
end

local function note_reset(who, first, entry_count)
  if events_max == "0" then return end
  local moved, back = moves(first, entry_count)
  local last = call("HMGET", group, "reset_by", "reset_at")
  if moved == "" or (not back and last[1] == who and now - last[2] < QUIET_MS) then return end
  call("HSET", group, "reset_by", who, "reset_at", now_text)
  local host, client_id = who:match("^(%S*) (.*)$")
  call("XADD", events, "MAXLEN", "~", events_max, "*", "time", now_text, "group", name, "generation", current,
    "kind", "offsets_reset", "cause", "", "member", "", "instance_id", "", "client_id", client_id:sub(1, NAME_MAX), "host", host,
    "reason", "", "detail", moved, "members", "0", "broker", broker, "duration_ms", "0")
end
