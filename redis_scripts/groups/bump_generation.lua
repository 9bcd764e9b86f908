#!lua flags=allow-oom
--[[ Bump a group above generations that members received and that Redis has lost (spec R12); its members rejoin.

A group with member epochs is bumped too if it lost another write: partitions change their owner within an epoch.

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
KEYS[12]  consumers      hash    member id -> its record, of a KIP-848 or streams group
ARGV[1]   group's name in the shard's keys
ARGV[2]   wake channel
ARGV[3]   maximum number of stored events, 0 for none
ARGV[4]   broker
ARGV[5]   the newest generation that a broker remembers, -1 if no broker remembers it
ARGV[6]   1: members received its assignments too
ARGV[7]   how many generations to skip if ARGV[5] is -1; once for each failover epoch. Groups with member epochs skip always
ARGV[8]   failover epoch; `raised_in` has it once the group has skipped, before that with FLOOR_ONLY behind it
ARGV[9]   the newest version of the group that a broker remembers, -1 if none
Returns   {NONE, 1 if the group was behind}; safe to run twice: a bumped group is not behind
Errors    none
]]
-- @include lib/errors
local newest_generation, assigned, skipped, newest_version = tonumber(ARGV[5]), ARGV[6] == "1", tonumber(ARGV[7]), tonumber(ARGV[9])
local stored = redis.call("HMGET", KEYS[1], "state", "generation", "generation_floor", "raised_in", "type", "version")
local stored_state, generation, floor = stored[1], tonumber(stored[2]), tonumber(stored[3] or 0)
local kind, version = stored[5], tonumber(stored[6] or 0)
local FLOOR_ONLY = ":floor"
local skips, is_raised, has_floor = newest_generation < 0, stored[4] == ARGV[8], stored[4] == ARGV[8] .. FLOOR_ONLY
local has_epochs = kind == "consumer" or kind == "streams"

-- A group that was lost whole: who creates it again within the longest session, 30 min, opens a generation above the floor.
local function keep_floor()
  if newest_generation <= floor then return { ERROR.NONE, 0 } end
  redis.call("HSET", KEYS[1], "generation_floor", string.format("%.0f", newest_generation))
  redis.call("PEXPIRE", KEYS[1], 1800000)
  return { ERROR.NONE, 1 }
end
if not stored_state then return keep_floor() end

local function is_behind()
  if kind == "share" then return false end -- epochs fence its members: their partitions change with the epoch only
  if skips then return not is_raised and not (has_floor and generation > floor) end
  if has_epochs then return newest_generation > generation or newest_version > version end
  if newest_generation > math.max(generation, floor) then return true end
  return assigned and newest_generation == generation and stored_state == STATE.COMPLETING
end

-- Nearly every call ends here: brokers report all groups that they remember on each connection.
if not is_behind() then return { ERROR.NONE, 0 } end
if skips then newest_generation = math.max(generation, floor) + (has_floor and 0 or skipped) end
if skips and not has_epochs then
  -- First, and once: a key that no script can read may end this one here, to be run again once somebody moved it away.
  floor = newest_generation
  redis.call("HSET", KEYS[1], "generation_floor", string.format("%.0f", floor), "raised_in", ARGV[8] .. FLOOR_ONLY)
end
local function note_raised()
  if skips then redis.call("HSET", KEYS[1], "raised_in", ARGV[8]) end
end

-- @include lib/load_group
-- @include lib/state
-- @include lib/deadlines
-- @include lib/tallies
-- @include lib/sessions
-- @include lib/rebalance
-- @include lib/finish
-- @include lib/fence_members
local group = load_group()
if has_epochs then
  fence_members(group, KEYS[12], math.max(newest_generation, generation) + skipped, math.max(newest_version, version) + skipped)
  note_raised()
  return { ERROR.NONE, 1 }
end
deadlines.first_session(group)
redis.call("HSET", group.keys.group, "generation_floor", string.format("%.0f", math.max(floor, newest_generation)))
if group.state ~= STATE.EMPTY then sessions.start_all(group) end
if group.state == STATE.STABLE or group.state == STATE.COMPLETING then
  rebalance.start(group, "writes_lost")
elseif group.state == STATE.PREPARING then
  local is_first = group.prev_state == STATE.EMPTY
  state.put(group, "join_deadline", group.now + (is_first and group.initial_delay or tallies.max_rebalance_timeout(group)))
end
finish(group)
note_raised()
return { ERROR.NONE, 1 }
