#!lua flags=allow-oom
--[[ Show in a group's mirror what a member was handed: how far that reaches, and which entries await its commit.

Leaves what `XGROUP SETID` and then `XREADGROUP GROUP <group> <member> ... STREAMS <log> >` would leave, but takes no
entry into its hands: XCLAIM FORCE JUSTID makes an entry pending, or moves it to this member, by its id alone.
An entry that was trimmed meanwhile is passed over.

KEYS[1]    log     stream
KEYS[2]    owners  hash    group -> who owns the partition
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
local log, owners = KEYS[1], KEYS[2]
local group, member, position, pending_max, first = ARGV[1], ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6] == "1"

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
if #ARGV > 6 then
  local claim = { unpack(ARGV, 7) }
  claim[#claim + 1] = "FORCE"
  claim[#claim + 1] = "JUSTID"
  redis.call("XCLAIM", log, group, member, 0, unpack(claim))
end
if first then release_others() end
let_go()
return { ERROR.NONE }
