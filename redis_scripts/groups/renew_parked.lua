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
-- @include lib/classic_group

expire_overdue()
local held = now + tonumber(ARGV[5])
local added = string.format('"added_round":%.0f,', g.round)
local parked = string.format('"join_round":%.0f,', g.round)
if g.state ~= PREPARING then parked = string.format('"sync_generation":%.0f,', g.generation) end

-- The end of the lease for this record; nil if its member is not parked. A first join's lease has a latest end.
local function held_until(record)
  if (g.state ~= PREPARING and g.state ~= COMPLETING) or not record:find(parked, 1, true) then return nil end
  if g.state == COMPLETING or not record:find(added, 1, true) then return held end
  return math.min(held, tonumber(record:match('"join_by":(%d+)')))
end

local scores, earliest = {}, math.huge
for first = 6, #ARGV, 500 do
  local ids = { unpack(ARGV, first, math.min(first + 499, #ARGV)) }
  for i, record in ipairs(redis.call("HMGET", members, unpack(ids))) do
    local score = record and held_until(record)
    if score then
      scores[#scores + 1], scores[#scores + 2] = string.format("%.0f", score), ids[i]
      earliest = math.min(earliest, score)
    end
  end
end
arm(scores, earliest)
finish()
return { ERROR.NONE }
