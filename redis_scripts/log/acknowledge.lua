#!lua flags=allow-oom
--[[ Acknowledge in a group's mirror what a commit has finished: pending entries that end at or below the offset.

A log has no gaps, so all but the last of the entries that start below the offset end below it; only that one is
looked into. An entry that was trimmed is finished. The mirror stands where its reader is, and where no member ever
owned the partition (a consumer that assigns itself, an administrator) at the commit. One that is missing is made.
The offset is kept: what another broker shows later as handed out is not pending where it ends at or below that.

KEYS[1]  log           stream
KEYS[2]  owners        hash    group -> who owns the partition
KEYS[3]  acknowledged  hash    group -> the offset that it committed last, its own id if that is known
ARGV[1]  group: the mirror's name
ARGV[2]  committed offset
ARGV[3]  most entries acknowledged, at least 2
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
else -- so nothing was ever handed out
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
