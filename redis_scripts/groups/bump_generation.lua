#!lua flags=allow-oom
--[[ Bump a group above generations that members received and that Redis has lost (spec R12); its members rejoin.

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
ARGV[5]   the newest generation that a broker remembers, -1 if no broker remembers it
ARGV[6]   1: members received its assignments too
ARGV[7]   how many generations to skip if ARGV[5] is -1; once for each failover epoch
ARGV[8]   failover epoch
Returns   {NONE, 1 if the group was behind}; safe to run twice: a bumped group is not behind
Errors    none
]]
-- @include lib/errors
local handed_out, assigned = tonumber(ARGV[5]), ARGV[6] == "1"
local kept = redis.call("HMGET", KEYS[1], "state", "generation", "generation_floor", "raised_in", "type")
local state, generation, floor = kept[1], tonumber(kept[2]), tonumber(kept[3] or 0)

-- A group that was lost whole: who creates it again within the longest session, 30 min, opens a generation above the floor.
local function keep_floor()
  if handed_out <= floor then return { ERROR.NONE, 0 } end
  redis.call("HSET", KEYS[1], "generation_floor", string.format("%.0f", handed_out))
  redis.call("PEXPIRE", KEYS[1], 1800000)
  return { ERROR.NONE, 1 }
end
if not state then return keep_floor() end

local function is_behind()
  if kept[5] == "consumer" or kept[5] == "streams" then return false end -- members of such groups are fenced by their epoch
  if handed_out < 0 then return kept[4] ~= ARGV[8] end
  if handed_out > math.max(generation, floor) then return true end
  return assigned and handed_out == generation and state == "CompletingRebalance"
end

-- Nearly every call ends here: brokers report all groups that they remember on each connection.
if not is_behind() then return { ERROR.NONE, 0 } end
if handed_out < 0 then
  handed_out = math.max(generation, floor) + tonumber(ARGV[7])
  redis.call("HSET", KEYS[1], "raised_in", ARGV[8])
end

-- @include lib/classic_group
first_session(g)
redis.call("HSET", group, "generation_floor", string.format("%.0f", math.max(floor, handed_out)))
if g.state ~= EMPTY then arm_all() end
if g.state == STABLE or g.state == COMPLETING then
  prepare_rebalance("writes_lost")
elseif g.state == PREPARING then
  put(g, "join_deadline", now + (g.prev_state == EMPTY and g.initial_delay or max_rebalance_timeout()))
end
finish()
return { ERROR.NONE, 1 }
