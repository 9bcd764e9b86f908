#!lua flags=allow-oom
--[[ Extend the sessions of members of KIP-848, share and streams groups that have nothing to report in a group at rest. One
script takes a tick's heartbeats of a shard; every other heartbeat is left to a decision.

KEYS[1...]  group  hash  type, generation, target_epoch, topics_version, heartbeat_interval_ms, and of a streams group
            has_status, endpoint_epoch, standby_replicas, assigned_replicas; behind it the group's
            consumers (hash, member id -> its record), consumer_sessions (zset, member id -> session deadline, ms),
            revocations (zset, member id -> deadline, ms); four keys for each group
ARGV[1]     the catalogue's version that this broker has cached, -1 if none
ARGV[2...]  for each group: count of heartbeats, and for each: member id, member epoch, the instance id as the record
            has it ("" for none); at most 500 in all
Returns  {NONE, for each group: its heartbeat interval, ms (0: the broker's setting), the shortest session timeout of the
         members that were answered with NONE, ms (0: none), and the code of each heartbeat}
         safe to run twice
Errors   of each: UNDECIDED  the member, its epoch, the group or the topics are not at rest, or a deadline has passed.
                    The session of a member with this epoch is extended all the same: a snapshot may have answered.
]]
-- @include lib/errors
-- @include lib/now_ms
local call, now, topics_version, answers = redis.call, now_ms(), ARGV[1], { ERROR.NONE }

local function is_due(key)
  local first = call("ZRANGE", key, 0, 0, "WITHSCORES")[2]
  return first and tonumber(first) <= now
end

-- Whether a member of a streams group is answered with no more than an epoch: without status, and without endpoints.
local function has_no_news(group)
  local hash = call("HMGET", group, "has_status", "endpoint_epoch", "standby_replicas", "assigned_replicas")
  return hash[1] == "0" and hash[2] == "0" and hash[3] == hash[4]
end

-- Whether nothing happens to the group: its target is computed for its epoch and for the topics of this broker.
local function is_at_rest(group, hash)
  return hash[2] == hash[3] and (hash[4] == topics_version or topics_version == "-1")
    and (hash[1] == "consumer" or hash[1] == "share" or (hash[1] == "streams" and has_no_news(group)))
end

-- The session timeout of a member with this epoch and instance, and whether it has reached the target; nil if there is none.
local function judge(record, hash, epoch, instance)
  if not record then return end
  local timeout_ms, own_epoch, rest = string.match(record, CONSUMER.HEAD)
  if own_epoch ~= epoch or (instance ~= "" and not string.find(record, instance, 1, true)) then return end
  return tonumber(timeout_ms), own_epoch == hash[2] and (hash[1] == "share" or string.find(record, CONSUMER.STABLE, rest, true) == rest)
end

local function extend(sessions, deadlines, is_overdue)
  if #deadlines == 0 then return end
  if not is_overdue then
    call("ZADD", sessions, "GT", unpack(deadlines))
    return
  end
  for i = 1, #deadlines, 2 do -- nobody returns whose session has ended
    if tonumber(call("ZSCORE", sessions, deadlines[i + 1]) or 0) > now then
      call("ZADD", sessions, "GT", deadlines[i], deadlines[i + 1])
    end
  end
end

local function answer_group(group, consumers, sessions, revocations, first, last)
  local hash = call("HMGET", group, "type", "generation", "target_epoch", "topics_version", "heartbeat_interval_ms")
  local is_overdue = is_due(sessions)
  local is_quiet, shortest_ms = is_at_rest(group, hash) and not is_overdue and not is_due(revocations), nil
  local place = #answers + 2
  answers[place - 1] = tonumber(hash[5] or 0)
  answers[place] = 0
  local ids, deadlines = {}, {}
  for at = first, last, 3 do ids[#ids + 1] = ARGV[at] end
  local records = call("HMGET", consumers, unpack(ids))
  for i, member_id in ipairs(ids) do
    local at = first + 3 * i - 3
    local timeout_ms, is_reconciled = judge(records[i], hash, ARGV[at + 1], ARGV[at + 2])
    if timeout_ms then
      deadlines[#deadlines + 1] = now + timeout_ms
      deadlines[#deadlines + 1] = member_id
    end
    local is_answered = is_quiet and is_reconciled
    if is_answered then shortest_ms = math.min(shortest_ms or timeout_ms, timeout_ms) end
    answers[#answers + 1] = is_answered and ERROR.NONE or ERROR.UNDECIDED
  end
  answers[place] = shortest_ms or 0
  extend(sessions, deadlines, is_overdue)
end

local at = 2
for i = 1, #KEYS, 4 do
  local last = at + 3 * ARGV[at]
  answer_group(KEYS[i], KEYS[i + 1], KEYS[i + 2], KEYS[i + 3], at + 1, last)
  at = last + 1
end
return answers
