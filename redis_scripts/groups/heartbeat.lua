#!lua flags=allow-oom
--[[ Extend the sessions of classic members and report a rebalance (KIP-62). One script takes a tick's heartbeats
of a shard; each group is evaluated by itself.

KEYS[1...]  group  hash  type, state, generation, deadlines; behind it the group's members (hash, member id -> its record),
            sessions (zset, member id -> session deadline, ms), instances (hash, static instance id -> member id);
            four keys for each group
ARGV[1...]  for each group: count of heartbeats, and for each: member id, generation, instance id ("" for none);
            at most 500 in all
Returns  {NONE, code of each in order}; safe to run twice
Errors   of each: EXPIRY_DUE             a deadline of its group has passed: the caller runs groups/expire_group,
                                         then retries
                  UNKNOWN_MEMBER_ID      not a member (pending ids are not members), or no such group
                  FENCED_INSTANCE_ID     another member id owns the instance
                  ILLEGAL_GENERATION     another generation (the session is not extended)
                  REBALANCE_IN_PROGRESS  the group waits for members to rejoin (the session is extended)
                  OTHER_TYPE             a KIP-848 group with members, some of which may have joined by JoinGroup
]]
-- @include lib/errors
-- @include lib/now_ms
-- @include lib/is_converted_epoch
local call, now, codes = redis.call, now_ms(), { ERROR.NONE }

local function due(deadline)
  deadline = deadline and deadline ~= "0" and tonumber(deadline)
  return deadline and deadline > 0 and deadline <= now
end

local function unknown_member(group)
  return call("HGET", group, "type") == "consumer" and ERROR.OTHER_TYPE or ERROR.UNKNOWN_MEMBER_ID
end

local function fenced(group, instances, member_id, instance_id)
  local owner = call("HGET", instances, instance_id)
  if not owner then return unknown_member(group) end
  return owner ~= member_id and ERROR.FENCED_INSTANCE_ID
end

local function judge(group, hash, record, instances, at)
  local code = ARGV[at + 2] ~= "" and fenced(group, instances, ARGV[at], ARGV[at + 2])
  if code then return code end
  if not record then return unknown_member(group) end
  if ARGV[at + 1] ~= hash[2] and not is_converted_epoch(hash[1], hash[2], record, ARGV[at + 1]) then
    return ERROR.ILLEGAL_GENERATION
  end
  return hash[1] == STATE.PREPARING and ERROR.REBALANCE_IN_PROGRESS or ERROR.NONE
end

-- The heartbeats of one group: one read of its members, one write of its sessions.
local function record(group, members, sessions, instances, first, last)
  local hash = call("HMGET", group, "state", "generation", "join_deadline", "sync_deadline")
  if due(hash[3]) or due(hash[4]) or due(call("ZRANGE", sessions, 0, 0, "WITHSCORES")[2]) then
    for _ = first, last, 3 do codes[#codes + 1] = ERROR.EXPIRY_DUE end
    return
  end
  local ids, deadlines = {}, {}
  for at = first, last, 3 do ids[#ids + 1] = ARGV[at] end
  local records = call("HMGET", members, unpack(ids))
  for i, member_id in ipairs(ids) do
    local code = judge(group, hash, records[i], instances, first + 3 * i - 3)
    if code == ERROR.NONE or code == ERROR.REBALANCE_IN_PROGRESS then
      deadlines[#deadlines + 1] = now + string.match(records[i], MEMBER.SESSION_TIMEOUT)
      deadlines[#deadlines + 1] = member_id
    end
    codes[#codes + 1] = code
  end
  -- Never shorten a session: a parked member's lease may end later than its session.
  if #deadlines > 0 then call("ZADD", sessions, "GT", unpack(deadlines)) end
end

local at = 1
for i = 1, #KEYS, 4 do
  local last = at + 3 * ARGV[at]
  record(KEYS[i], KEYS[i + 1], KEYS[i + 2], KEYS[i + 3], at + 1, last)
  at = last + 1
end
return codes
