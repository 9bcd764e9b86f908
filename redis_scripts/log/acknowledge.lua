#!lua flags=allow-oom
--[[ Acknowledge in a group's mirror the pending entries that a commit completes: those that end at or below the offset.

A log has no gaps, so all but the last of the entries that start below the offset end below it; only that one is
read. A trimmed entry counts as completed. The mirror's position is its reader's, but never below a new commit, which
proves what no delivery showed: the members have left, or their reads are not recognised. If no member ever owned the
partition (a consumer that assigns itself, an administrator), it is the committed offset. A missing mirror is created.
The offset is stored: an entry that another broker reports as delivered later is not pending if it ends at or below it.

KEYS[1]  log           stream
KEYS[2]  owners        hash    group -> the partition's owner (JSON)
KEYS[3]  acknowledged  hash    group -> its last committed offset, the group's own id if known
ARGV[1]  group: the mirror's name
ARGV[2]  committed offset
ARGV[3]  limit of entries acknowledged, at least 2
Returns  {NONE, entries acknowledged, 1 if there are more, or 2 if the offset is below the last one, and there is an
         owner}; safe to run twice
Errors   UNKNOWN_TOPIC_OR_PARTITION  there is no such stream
]]
-- @include lib/errors
-- @include lib/entry_end
local log, owners, acknowledged = KEYS[1], KEYS[2], KEYS[3]
local group, offset, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local before = ARGV[2] .. "-0"
local owner = redis.call("HGET", owners, group)
local commit = ARGV[2] .. " " .. (owner and string.match(owner, '^{"id":"([^"]*)"') or "")

-- The id of the last entry that starts below the offset, nil without one, and whether the entry ends at or below it.
local function last_below()
  local entry = redis.call("XREVRANGE", log, before, "-", "COUNT", 1)[1]
  if entry then return entry[1], (entry_end(entry) or 0) <= offset end
end

local function id_before(id) return (string.gsub(id, "-1$", "-0")) end

local function stand(subcommand)
  local id, is_finished = last_below()
  return redis.pcall("XGROUP", subcommand, log, group, id and not is_finished and id_before(id) or before)
end

-- LASTID moves a position forward only, and replies with no other group, as XINFO GROUPS does. No entry has the id 0-0.
-- An owner that nobody can read has no reader.
local function stand_at_least()
  local is_read, member = pcall(function() return cjson.decode(owner).member_id end)
  if not is_read or type(member) ~= "string" then return stand("SETID") end
  local id, is_finished = last_below()
  if not id then return end
  redis.call("XCLAIM", log, group, member, 0, "0-0", "JUSTID", "LASTID", is_finished and id or id_before(id))
end

local function finish(count, more)
  if more ~= 1 then redis.call("HSET", acknowledged, group, commit) end
  return { ERROR.NONE, count, more }
end

if not owner then -- no entry was ever delivered
  if stand("SETID").err and stand("CREATE").err then return { ERROR.UNKNOWN_TOPIC_OR_PARTITION } end
  return finish(0, 0)
end
local pending, ids = redis.pcall("XPENDING", log, group, "-", before, most), {}
if pending.err then
  if stand("CREATE").err then return { ERROR.UNKNOWN_TOPIC_OR_PARTITION } end
  return finish(0, 0)
end
for i, one in ipairs(pending) do
  ids[i] = one[1]
end
if #ids == most then
  table.remove(ids)
elseif #ids > 0 then
  local entry = redis.call("XRANGE", log, ids[#ids], ids[#ids])[1]
  local end_offset = entry and entry_end(entry) or 0
  if end_offset < offset then stand_at_least() end
  if end_offset > offset then table.remove(ids) end
else
  local last = redis.call("HGET", acknowledged, group)
  if last == commit then return { ERROR.NONE, 0, 0 } end
  stand_at_least()
  if last and (tonumber(string.match(last, "^%d+")) or 0) > offset then return finish(0, 2) end
end
for first = 1, #ids, 1000 do
  redis.call("XACK", log, group, unpack(ids, first, math.min(first + 999, #ids)))
end
return finish(#ids, #pending == most and 1 or 0)
