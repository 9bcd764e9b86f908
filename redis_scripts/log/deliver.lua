#!lua flags=allow-oom
--[[ Record in a group's mirror what a member fetched: the last entry id, and the entries that await its commit.

Has the result of `XGROUP SETID` and then `XREADGROUP GROUP <group> <member> ... STREAMS <log> >`, but reads no entry:
XCLAIM FORCE JUSTID makes an entry pending, or moves it to this member, by its id alone.
Entries that were trimmed meanwhile are skipped, and so are entries that the group's commit has completed: another
broker may have recorded that commit first.

KEYS[1]    log           stream
KEYS[2]    owners        hash    group -> the partition's owner (JSON)
KEYS[3]    acknowledged  hash    group -> its last committed offset, the group's own id if known
ARGV[1]    group: the mirror's name
ARGV[2]    the owner's record that the caller has read
ARGV[3]    member
ARGV[4]    id of the last entry delivered
ARGV[5]    limit of pending entries; the oldest are released
ARGV[6]    1: the caller's first delivery to this member, so entries of other members are released
ARGV[7...] ids of the delivered entries
Returns    {NONE}; safe to run twice, except for the time of delivery
Errors     ILLEGAL_GENERATION          the owner has changed
           UNKNOWN_TOPIC_OR_PARTITION  there is no such stream
]]
-- @include lib/errors
-- @include lib/entry_end
local log, owners, acknowledged = KEYS[1], KEYS[2], KEYS[3]
local group, member, position, pending_max, first = ARGV[1], ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6] == "1"

-- The offset committed by this group, not by an earlier group of its name.
local function committed()
  local offset, id = string.match(redis.call("HGET", acknowledged, group) or "", "^(%d+) (.*)$")
  local own = string.match(ARGV[2], '^{"id":"([^"]*)"')
  return offset and (id == "" or id == own) and tonumber(offset) or 0
end

-- A log has no gaps: of the entries that start below the offset only the last may end above it.
local function unfinished(ids)
  local offset, left, last_id, last_base = committed(), {}, nil, -1
  for _, id in ipairs(ids) do
    local base = tonumber(string.match(id, "^%d+"))
    if base >= offset then
      left[#left + 1] = id
    elseif base > last_base then
      last_id, last_base = id, base
    end
  end
  local entry = last_id and redis.call("XRANGE", log, last_id, last_id)[1]
  if entry and (entry_end(entry) or 0) > offset then table.insert(left, 1, last_id) end
  return left
end

local function release_others()
  redis.call("XGROUP", "CREATECONSUMER", log, group, member)
  for _, consumer in ipairs(redis.call("XINFO", "CONSUMERS", log, group)) do
    if consumer[2] ~= member then redis.call("XGROUP", "DELCONSUMER", log, group, consumer[2]) end
  end
end

local function let_go()
  local surplus = redis.call("XPENDING", log, group)[1] - pending_max
  if surplus <= 0 then return end
  local ids = {}
  for i, oldest in ipairs(redis.call("XPENDING", log, group, "-", "+", math.min(surplus, 1000))) do ids[i] = oldest[1] end
  redis.call("XACK", log, group, unpack(ids))
end

if redis.call("HGET", owners, group) ~= ARGV[2] then return { ERROR.ILLEGAL_GENERATION } end

local moved = redis.pcall("XGROUP", "SETID", log, group, position)
if moved.err and redis.pcall("XGROUP", "CREATE", log, group, position).err then
  return { ERROR.UNKNOWN_TOPIC_OR_PARTITION }
end
local claim = unfinished({ unpack(ARGV, 7) })
if #claim > 0 then
  claim[#claim + 1] = "FORCE"
  claim[#claim + 1] = "JUSTID"
  redis.call("XCLAIM", log, group, member, 0, unpack(claim))
end
if first then release_others() end
let_go()
return { ERROR.NONE }
