#!lua flags=allow-oom
--[[ Extend classic members' sessions; say whether a rebalance is on (KIP-62). One script for a tick's heartbeats.

KEYS[1]  group      hash  state, generation, deadlines
KEYS[2]  members    hash  member id -> its record
KEYS[3]  sessions   zset  member id -> session deadline, ms
KEYS[4]  instances  hash  static instance id -> member id
ARGV[1...]  member id, generation, instance id ("" for none), one triple after the other, at most 500
Returns  {NONE, code of each in order}; safe to run twice
Errors   OVERDUE  something is due: the caller settles the group (groups/expire_group), then asks again
         of each: UNKNOWN_MEMBER_ID      not a member (pending ids are not), or no such group
                  FENCED_INSTANCE_ID     another member id owns the instance
                  ILLEGAL_GENERATION     another generation (the session is not extended)
                  REBALANCE_IN_PROGRESS  the group waits for members to rejoin (the session is extended all the same)
]]
-- @include lib/errors
-- @include lib/clock
local group, members, sessions, instances = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local SESSION_TIMEOUT = '^{"session_timeout_ms":(%d+)'

local now = now_ms()
local hash = redis.call("HMGET", group, "state", "generation", "join_deadline", "sync_deadline")
local state, generation = hash[1], hash[2]

local function due(deadline)
  deadline = tonumber(deadline or 0)
  return deadline > 0 and deadline <= now
end

if due(hash[3]) or due(hash[4]) or due(redis.call("ZRANGE", sessions, 0, 0, "WITHSCORES")[2]) then return { ERROR.OVERDUE } end

local function fenced(member_id, instance_id)
  if instance_id == "" then return ERROR.NONE end
  local owner = redis.call("HGET", instances, instance_id)
  if not owner then return ERROR.UNKNOWN_MEMBER_ID end
  return owner == member_id and ERROR.NONE or ERROR.FENCED_INSTANCE_ID
end

local ids, deadlines = {}, {}
for i = 1, #ARGV, 3 do ids[#ids + 1] = ARGV[i] end
local records = redis.call("HMGET", members, unpack(ids))

local function beat(i, member_id)
  local code = fenced(member_id, ARGV[3 * i])
  if code ~= ERROR.NONE then return code end
  if not records[i] then return ERROR.UNKNOWN_MEMBER_ID end
  if ARGV[3 * i - 1] ~= generation then return ERROR.ILLEGAL_GENERATION end
  deadlines[#deadlines + 1] = string.format("%.0f", now + records[i]:match(SESSION_TIMEOUT))
  deadlines[#deadlines + 1] = member_id
  return state == "PreparingRebalance" and ERROR.REBALANCE_IN_PROGRESS or ERROR.NONE
end

local codes = { ERROR.NONE }
for i, member_id in ipairs(ids) do codes[i + 1] = beat(i, member_id) end
-- Only forward: a parked member's lease may reach further than its session.
if #deadlines > 0 then redis.call("ZADD", sessions, "GT", unpack(deadlines)) end
return codes
