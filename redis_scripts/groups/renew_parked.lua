#!lua flags=allow-oom
--[[ Renew the lease by which parked requests hold their members' sessions.

KEYS[1]   group          hash    state, generation, round, leader, protocol, deadlines
KEYS[2]   members        hash    member id -> its record
KEYS[3]   subscriptions  hash    member id -> its protocols and their metadata, packed
KEYS[4]   assignments    hash    member id -> the leader's bytes
KEYS[5]   protocols      hash    counts over the members: protocols, offered lists, timeouts
KEYS[6]   instances      hash    static instance id -> member id
KEYS[7]   sessions       zset    member id (also pending) -> deadline or lease, ms
KEYS[8]   pending        hash    assigned member ids that have not joined yet -> client
KEYS[9]   groups         hash    group -> type, state, protocol type
KEYS[10]  deadlines      zset    kind|group -> earliest deadline, ms
KEYS[11]  events         stream  transitions of the shard's groups
ARGV[1]   group's name in the shard's keys
ARGV[2]   wake channel
ARGV[3]   maximum number of stored events, 0 for none
ARGV[4]   broker
ARGV[5]   lease, ms
ARGV[6...]  ids of members whose requests this broker has parked
Returns   {NONE}; safe to run twice
Errors    none
]]
-- @include lib/errors
-- @include lib/load_group
-- @include lib/sessions
-- @include lib/expire_overdue
-- @include lib/finish
local group = load_group()
expire_overdue(group)
local lease_end, state = group.now + tonumber(ARGV[5]), group.state
local added, parked = string.format(MEMBER.ADDED, group.round), string.format(MEMBER.JOINED, group.round)
if state ~= STATE.PREPARING then parked = string.format(MEMBER.SYNCED, group.generation) end

-- The end of the lease for this record; nil if its member is not parked. A first join's lease has a latest end.
local function lease_end_of(record)
  if (state ~= STATE.PREPARING and state ~= STATE.COMPLETING) or not record:find(parked, 1, true) then return nil end
  if state == STATE.COMPLETING or not record:find(added, 1, true) then return lease_end end
  return math.min(lease_end, tonumber(record:match(MEMBER.JOIN_BY)))
end

local scores, earliest = {}, math.huge
for first = 6, #ARGV, 500 do
  local ids = { unpack(ARGV, first, math.min(first + 499, #ARGV)) }
  for i, record in ipairs(redis.call("HMGET", group.keys.members, unpack(ids))) do
    local score = record and lease_end_of(record)
    if score then
      scores[#scores + 1], scores[#scores + 2] = string.format("%.0f", score), ids[i]
      earliest = math.min(earliest, score)
    end
  end
end
sessions.set(group, scores, earliest)
finish(group)
return { ERROR.NONE }
