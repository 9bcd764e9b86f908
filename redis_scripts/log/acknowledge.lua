#!lua flags=allow-oom
--[[ Acknowledge in a group's mirror the pending entries that a commit completes: those that end at or below the offset.

A log has no gaps, so all but the last of the entries that start below the offset end below it; only that one is
read. A trimmed entry counts as completed. The mirror's position is its reader's; if no member ever owned the partition
(a consumer that assigns itself, an administrator), it is the committed offset. A missing mirror is created. The offset
is stored: an entry that another broker reports as delivered later is not pending if it ends at or below the offset.

KEYS[1]  log           stream
KEYS[2]  owners        hash    group -> the partition's owner (JSON)
KEYS[3]  acknowledged  hash    group -> its last committed offset, the group's own id if known
ARGV[1]  group: the mirror's name
ARGV[2]  committed offset
ARGV[3]  limit of entries acknowledged, at least 2
Returns  {NONE, entries acknowledged, 1 if there are more}; safe to run twice
Errors   UNKNOWN_TOPIC_OR_PARTITION  there is no such stream
]]
-- @include lib/errors
-- @include lib/entry_end
local log, owners, acknowledged = KEYS[1], KEYS[2], KEYS[3]
local group, offset, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local before = ARGV[2] .. "-0"

local function stand(subcommand)
  local holder, position = redis.call("XREVRANGE", log, before, "-", "COUNT", 1)[1], before
  if holder and (entry_end(holder) or 0) > offset then position = string.gsub(holder[1], "-1$", "-0") end
  return redis.pcall("XGROUP", subcommand, log, group, position)
end

local function is_finished(id)
  local entry = redis.call("XRANGE", log, id, id)[1]
  return not entry or (entry_end(entry) or 0) <= offset
end

local owner, pending, ids = redis.call("HGET", owners, group), {}, {}
if owner then
  pending = redis.pcall("XPENDING", log, group, "-", before, most)
  if pending.err then pending = stand("CREATE") end
else -- no entry was ever delivered
  pending = stand("SETID")
  if pending.err then pending = stand("CREATE") end
end
if pending.err then return { ERROR.UNKNOWN_TOPIC_OR_PARTITION } end
redis.call("HSET", acknowledged, group, ARGV[2] .. " " .. (owner and string.match(owner, '^{"id":"([^"]*)"') or ""))
for i, one in ipairs(pending) do
  ids[i] = one[1]
end
local more = #ids == most
if more or (#ids > 0 and not is_finished(ids[#ids])) then table.remove(ids) end
for first = 1, #ids, 1000 do
  redis.call("XACK", log, group, unpack(ids, first, math.min(first + 999, #ids)))
end
return { ERROR.NONE, #ids, more and 1 or 0 }
