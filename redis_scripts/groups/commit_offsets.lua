#!lua flags=allow-oom
--[[ Commit offsets: the commits of one tick, in order, for groups of any shards (in Redis Cluster of one shard); each
commit is validated by itself and stored completely or not at all.

KEYS[1...]  group   hash    id, type, state, generation, deadlines, commits_fenced_until, offsets_deleted_at; behind it the
            group's members (hash, member id -> its record), instances (hash, static instance id -> member id), sessions (zset, member
            id -> session deadline, ms), offsets (hash, <topic>:<partition> -> JSON of offset, leader epoch, topic id,
            metadata, commit time), and its shard's groups (hash, name -> "<type> <state> <protocol type>") and events
            (stream, transitions of groups); seven keys for each group. Behind them, for each partition of format record
            of a commit: records (stream), meta (hash, state), readers (hash, group -> its owner's record when it read
            last)
ARGV[1]     maximum number of stored events, 0 for none
ARGV[2]     broker
ARGV[3]     when the broker's lease ends, ms by Redis's clock, from its last renewal; 0 for a caller without a lease
ARGV[4]     when the commits came to the broker, ms by Redis's clock; negative if they are sent again, 0 if unknown: one
            time for all, or one for each, with spaces between them
ARGV[5...]  for each group, at most 100: its name in the shard's keys, "<id> <locator>" in case a commit without generation creates
            it, "<host> <client id>" of that commit's client (both "" without such a commit), count of commits; for
            each: generation, member id, "" or "=" and the instance id, retention ms or -1, count of entries; for each
            entry: its field and its JSON without commit time and closing brace. Behind them, if there are such
            partitions: "", and for each the commit's number in the call, the group, the id before the offset
Returns  {NONE, code of each commit ...}; safe to run twice: the same values again, the last write wins
Errors   of each:
         COORDINATOR_NOT_AVAILABLE  the lease has ended: the broker or the script was delayed; newer commits may
                                 have been stored through another broker. Or the script was delayed, and another
                                 offset was committed meanwhile, or it was deleted
         OTHER_TYPE              a KIP-848 group with members: groups/commit_consumer_offsets decides
         EXPIRY_DUE              a deadline of its group has passed: expire the group, then retry
         GROUP_ID_NOT_FOUND      no such group, and the commit names a generation; or a share group
         UNKNOWN_MEMBER_ID       not a member; or no member id while the group has members, or soon after an offset
                                 reset removed them
         FENCED_INSTANCE_ID      another member took over the static instance
         ILLEGAL_GENERATION      a generation other than the group's
         REBALANCE_IN_PROGRESS   the group waits for the leader's assignment; the session is not extended
]]
-- @include lib/errors
-- @include lib/now_ms
-- @include lib/create_empty_group
-- @include lib/is_late
-- @include lib/is_overtaken
-- @include lib/is_converted_epoch
local call, now, codes = redis.call, now_ms(), { ERROR.NONE }
local lease_end, sent_at, sent_each = tonumber(ARGV[3]), tonumber(ARGV[4]), nil
local lease_ended = lease_end > 0 and now >= lease_end
local now_text, commit_time = string.format("%.0f", now), string.format(OFFSET.NEW_COMMIT_TIME, now)
local VALUES_MAX = 2000 -- of one HSET: Lua's stack is limited

if not sent_at then
  sent_each = {}
  for one in string.gmatch(ARGV[4], "%S+") do sent_each[#sent_each + 1] = tonumber(one) end
end

local function is_due(deadline)
  deadline = deadline and deadline ~= "0" and tonumber(deadline)
  return deadline and deadline > 0 and deadline <= now
end

-- The group whose keys begin at KEYS[first] and whose name is at ARGV[at], and whether a deadline of it has passed.
local function read_group(first, at)
  local key, members, instances, sessions, offsets, groups, events = unpack(KEYS, first, first + 6)
  local hash = call("HMGET", key, "state", "generation", "join_deadline", "sync_deadline", "has_offsets", "type")
  local loaded = { key = key, members = members, instances = instances, sessions = sessions, offsets = offsets,
    ref = ARGV[at], candidate = ARGV[at + 1], by = ARGV[at + 2], state = hash[1], generation = hash[2],
    has_offsets = hash[5], is_share = hash[6] == "share", now = now, groups = groups, events = events,
    events_max = ARGV[1], broker = ARGV[2], values = {}, value_count = 0 }
  if not hash[1] or hash[1] == STATE.EMPTY then return loaded, false end
  return loaded, is_due(hash[3]) or is_due(hash[4]) or is_due(call("ZRANGE", sessions, 0, 0, "WITHSCORES")[2])
end

local function judge_without_members(group, generation, entry_count)
  local simple = string.byte(generation) == 45
  if group.state then
    -- A member removed by an offset reset may commit without its id: its old offset must not undo the reset.
    local fenced_until = simple and group.generation ~= "0" and call("HGET", group.key, "commits_fenced_until")
    if not simple or (fenced_until and now < tonumber(fenced_until)) then return ERROR.UNKNOWN_MEMBER_ID end
    return ERROR.NONE
  end
  if not simple then return ERROR.GROUP_ID_NOT_FOUND end
  if entry_count > 0 then
    group.state, group.generation = STATE.EMPTY, "0"
    create_empty_group(group.key, group.groups, group.ref, group.candidate, now)
  end
  return ERROR.NONE
end

local function unknown_member(group)
  local kind = call("HGET", group.key, "type")
  return (kind == "consumer" or kind == "streams") and ERROR.OTHER_TYPE or ERROR.UNKNOWN_MEMBER_ID
end

-- The record of a member; consecutive commits of one member read it, and extend its session, once.
local function member_record(group, member_id)
  if group.member_id ~= member_id then
    group.member_id, group.record, group.extended = member_id, call("HGET", group.members, member_id), false
  end
  return group.record
end

local function extend_session(group, record, member_id)
  if group.extended then return end
  group.extended = true
  -- Never shorten a session: a parked member's lease may end later than its session.
  call("ZADD", group.sessions, "XX", "GT", now + string.match(record, MEMBER.SESSION_TIMEOUT), member_id)
end

local function judge(group, generation, member_id, instance)
  if instance ~= "" then
    local owner_id = call("HGET", group.instances, string.sub(instance, 2))
    if not owner_id then return unknown_member(group) end
    if owner_id ~= member_id then return ERROR.FENCED_INSTANCE_ID end
  end
  local record = member_record(group, member_id)
  if not record then return unknown_member(group) end
  if generation ~= group.generation and not is_converted_epoch(group.state, group.generation, record, generation) then
    return ERROR.ILLEGAL_GENERATION
  end
  if group.state == STATE.COMPLETING then return ERROR.REBALANCE_IN_PROGRESS end
  extend_session(group, record, member_id)
  return ERROR.NONE
end

-- The group has offsets, and yet only those of this commit: Redis lost the others (a deleted key).
local function note_lost(group)
  if group.events_max == "0" then return end
  call("XADD", group.events, "MAXLEN", "~", group.events_max, "*", "time", now_text, "group", group.ref, "generation", group.generation,
    "kind", "offsets_lost", "cause", "", "member", "", "instance_id", "", "client_id", "", "host", "", "reason", "",
    "detail", "", "members", "0", "broker", group.broker, "duration_ms", "0")
end

-- Write the values that `store` gathered.
local function write(group)
  if group.value_count == 0 then return end
  local new = call("HSET", group.offsets, unpack(group.values, 1, group.value_count))
  group.values, group.value_count = {}, 0
  if not group.has_offsets then
    call("HSET", group.key, "has_offsets", "1")
    group.has_offsets = "1"
  elseif new > 0 and call("HLEN", group.offsets) == new then
    note_lost(group)
  end
end

-- Gather the entries of a commit: those of all commits of a group are written by one command, in order.
local function store(group, first, entry_count, tail)
  local values, count = group.values, group.value_count
  for i = first, first + 2 * entry_count - 1, 2 do
    if count == VALUES_MAX then
      group.value_count = count
      write(group)
      values, count = group.values, 0
    end
    values[count + 1], values[count + 2] = ARGV[i], ARGV[i + 1] .. tail
    count = count + 2
  end
  group.value_count = count
end

-- The answer to the commit that begins at ARGV[at].
local function commit(group, at, entry_count)
  if lease_ended then return ERROR.COORDINATOR_NOT_AVAILABLE end
  local retention, code = ARGV[at + 3], nil
  if group.is_share then
    code = ERROR.GROUP_ID_NOT_FOUND
  elseif not group.state or group.state == STATE.EMPTY then
    code = judge_without_members(group, ARGV[at], entry_count)
  else
    code = judge(group, ARGV[at], ARGV[at + 1], ARGV[at + 2])
  end
  local tail, arrived_at = commit_time, sent_at or sent_each[#codes]
  if code == ERROR.NONE and is_late(arrived_at, now) then
    write(group)
    local deleted_at = call("HGET", group.key, "offsets_deleted_at")
    local overtaken, committed_at = is_overtaken(group.offsets, arrived_at, at + 5, entry_count, deleted_at)
    if overtaken then return ERROR.COORDINATOR_NOT_AVAILABLE end
    if committed_at then tail = string.format(OFFSET.NEW_COMMIT_TIME, math.min(committed_at, now)) end
  end
  if code == ERROR.NONE and entry_count > 0 then
    if retention ~= "-1" then tail = tail .. string.format(OFFSET.NEW_EXPIRE_TIME, now + retention) end
    if group.state == STATE.EMPTY and group.generation ~= "0" then -- these functions are defined only in this case
-- @include lib/note_offsets_reset
      write(group)
      note_offsets_reset(group, group.by, at + 5, entry_count)
    end
    store(group, at + 5, entry_count, tail .. "}")
  end
  return code
end

local at, first = 5, 1
while first <= #KEYS and ARGV[at] ~= "" do
  local group, overdue = read_group(first, at)
  local commit_count = tonumber(ARGV[at + 3])
  at = at + 4
  for _ = 1, commit_count do
    local entry_count = tonumber(ARGV[at + 4])
    codes[#codes + 1] = overdue and not lease_ended and ERROR.EXPIRY_DUE or commit(group, at, entry_count)
    at = at + 5 + 2 * entry_count
  end
  write(group)
  first = first + 7
end
if first <= #KEYS then -- these functions are defined only in this case
-- @include lib/acknowledge_commits
  acknowledge_commits(first, at + 1, function(number) return codes[number + 2] == ERROR.NONE end)
end
return codes
