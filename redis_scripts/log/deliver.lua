#!lua flags=allow-oom
--[[ Show in a group's mirror what a member was handed: how far that reaches, and which entries await its commit.

Leaves what `XGROUP SETID` and then `XREADGROUP GROUP <group> <member> ... STREAMS <log> >` would leave, but takes no
entry into its hands: XCLAIM FORCE JUSTID makes an entry pending, or moves it to this member, by its id alone.
An entry that was trimmed meanwhile is passed over, and so is one that the group's commit has finished: another broker
may have shown that commit first.

KEYS[1]    log           stream
KEYS[2]    owners        hash    group -> who owns the partition
KEYS[3]    acknowledged  hash    group -> the offset that it committed last, its own id if that is known
ARGV[1]    group: the mirror's name
ARGV[2]    its owner's record, as the caller read it
ARGV[3]    member
ARGV[4]    id up to which all was handed out
ARGV[5]    most entries pending; the oldest are let go
ARGV[6]    1: the first that the caller hands to this member, so what others held is released
ARGV[7...] ids of the entries handed out
Returns    {NONE}; safe to run twice, but for the time of delivery
Errors     ILLEGAL_GENERATION          the owner is another one by now
           UNKNOWN_TOPIC_OR_PARTITION  there is no such stream
]]
-- @include lib/errors
-- @include lib/entry_end
local log, owners, acknowledged = KEYS[1], KEYS[2], KEYS[3]
local group, member, position, pending_max, first = ARGV[1], ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6] == "1"

-- What this group committed, not an earlier one of its name.
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
