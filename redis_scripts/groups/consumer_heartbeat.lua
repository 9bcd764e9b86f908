#!lua flags=allow-oom
--[[ Extend the sessions of members of KIP-848 groups that have nothing to report in a stable group. One script takes a
tick's heartbeats of a shard; every other heartbeat is left to a decision.

KEYS[1...]  group  hash  type, generation, target_epoch, topics_version, heartbeat_interval_ms; behind it the group's
            consumers (hash, member id -> its record), consumer_sessions (zset, member id -> session deadline, ms),
            revocations (zset, member id -> deadline, ms); four keys for each group
ARGV[1]     the catalogue's version that this broker has cached, -1 if none
ARGV[2...]  for each group: count of heartbeats, and for each: member id, member epoch, the instance id as the record
            has it ("" for none); at most 500 in all
Returns  {NONE, for each group: its heartbeat interval, ms (0: the broker's setting), and the code of each heartbeat}
         safe to run twice
Errors   of each: UNDECIDED  the member, its epoch, the group or the topics are not stable, or a deadline has passed
]]
-- @include lib/errors
-- @include lib/clock
local HEAD = '^{"session_timeout_ms":(%d+),"epoch":(-?%d+),"state":"(%a+)",'
local call, now, topics_version, answers = redis.call, now_ms(), ARGV[1], { ERROR.NONE }

local function is_due(key)
  local first = call("ZRANGE", key, 0, 0, "WITHSCORES")[2]
  return first and tonumber(first) <= now
end

-- Whether nothing happens to the group: its target is computed for its epoch and for the topics of this broker.
local function is_converged(hash)
  return hash[1] == "consumer" and hash[2] == hash[3] and (hash[4] == topics_version or topics_version == "-1")
end

-- A member's new session deadline; nil if its heartbeat needs a decision.
local function deadline(record, epoch, member_epoch, instance)
  if not record or epoch ~= member_epoch then return end
  local timeout_ms, own_epoch, state = string.match(record, HEAD)
  if own_epoch ~= epoch or state ~= "stable" then return end
  if instance ~= "" and not string.find(record, instance, 1, true) then return end
  return now + timeout_ms
end

local function answer_group(group, consumers, sessions, revocations, first, last)
  local hash = call("HMGET", group, "type", "generation", "target_epoch", "topics_version", "heartbeat_interval_ms")
  answers[#answers + 1] = tonumber(hash[5] or 0)
  if not is_converged(hash) or is_due(sessions) or is_due(revocations) then
    for _ = first, last, 3 do answers[#answers + 1] = ERROR.UNDECIDED end
    return
  end
  local ids, deadlines = {}, {}
  for at = first, last, 3 do ids[#ids + 1] = ARGV[at] end
  local records = call("HMGET", consumers, unpack(ids))
  for i, member_id in ipairs(ids) do
    local at = first + 3 * i - 3
    local ends = deadline(records[i], hash[2], ARGV[at + 1], ARGV[at + 2])
    if ends then
      deadlines[#deadlines + 1] = ends
      deadlines[#deadlines + 1] = member_id
    end
    answers[#answers + 1] = ends and ERROR.NONE or ERROR.UNDECIDED
  end
  if #deadlines > 0 then call("ZADD", sessions, "GT", unpack(deadlines)) end
end

local at = 2
for i = 1, #KEYS, 4 do
  local last = at + 3 * ARGV[at]
  answer_group(KEYS[i], KEYS[i + 1], KEYS[i + 2], KEYS[i + 3], at + 1, last)
  at = last + 1
end
return answers
