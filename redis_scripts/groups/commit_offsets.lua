#!lua flags=allow-oom
--[[ Commit offsets: the commits of one tick for groups of one shard, in order; each commit is validated by itself and
stored completely or not at all.

KEYS[1]     groups  hash    the shard's groups: name -> "<type> <state> <protocol type>"
KEYS[2]     events  stream  transitions of the shard's groups
KEYS[3...]  group   hash    id, type, state, generation, deadlines, commits_fenced_until; behind it the group's members
            (hash, member id -> its record), instances (hash, static instance id -> member id), sessions (zset, member
            id -> session deadline, ms), offsets (hash, <topic>:<partition> -> JSON of offset, leader epoch, topic id,
            metadata, commit time); five keys for each group. Behind them, for each partition of format record of a
            commit: records (stream), meta (hash, state), readers (hash, group -> its owner's record when it read last)
ARGV[1]     maximum number of stored events, 0 for none
ARGV[2]     broker
ARGV[3]     when the broker's lease ends, ms by Redis's clock, from its last renewal; 0 for a caller without a lease
ARGV[4]     when the broker sent the script, ms by Redis's clock; 0 if it does not know
ARGV[5...]  for each group: its name in the shard's keys, "<id> <locator>" in case a commit without generation creates
            it, "<host> <client id>" of that commit's client (both "" without such a commit), count of commits; for
            each: generation, member id, "" or "=" and the instance id, retention ms or -1, count of entries; for each
            entry: its field and its JSON without commit time and closing brace. Behind them, if there are such
            partitions: "", and for each the commit's number in the call, the group, the id before the offset
Returns  {NONE, code of each commit ...}; safe to run twice: the same values again, the last write wins
Errors   of each:
         COORDINATOR_NOT_AVAILABLE  the lease has ended: the broker or the script was delayed; newer commits may
                                 have been stored through another broker. Or the script was delayed, and a higher
                                 offset was committed meanwhile
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
-- @include lib/clock
-- @include lib/create_empty_group
-- @include lib/is_overtaken
local call, now, groups, codes = redis.call, now_ms(), KEYS[1], { ERROR.NONE }
local events, events_max, broker = KEYS[2], ARGV[1], ARGV[2]
local lease_end, sent_at = tonumber(ARGV[3]), tonumber(ARGV[4])
local lease_ended = lease_end > 0 and now >= lease_end
local now_text = string.format("%.0f", now)
local group, members, instances, sessions, offsets
local name, candidate, who, state, current, has_offsets, is_share

local function due(deadline)
  deadline = deadline and deadline ~= "0" and tonumber(deadline)
  return deadline and deadline > 0 and deadline <= now
end

local function load_group(first)
  group, members, instances, sessions, offsets = unpack(KEYS, first, first + 4)
  local hash = call("HMGET", group, "state", "generation", "join_deadline", "sync_deadline", "has_offsets", "type")
  state, current, has_offsets, is_share = hash[1], hash[2], hash[5], hash[6] == "share"
  if not state or state == "Empty" then return false end
  return due(hash[3]) or due(hash[4]) or due(call("ZRANGE", sessions, 0, 0, "WITHSCORES")[2])
end

local function judge_without_members(generation, entry_count)
  local simple = string.byte(generation) == 45
  if state then
    -- A member removed by an offset reset may commit without its id: its old offset must not undo the reset.
    local fenced_until = simple and current ~= "0" and call("HGET", group, "commits_fenced_until")
    if not simple or (fenced_until and now < tonumber(fenced_until)) then return ERROR.UNKNOWN_MEMBER_ID end
    return ERROR.NONE
  end
  if not simple then return ERROR.GROUP_ID_NOT_FOUND end
  if entry_count > 0 then
    state, current = "Empty", "0"
    create_empty_group(group, groups, name, candidate, now)
  end
  return ERROR.NONE
end

local function unknown_member()
  local kind = call("HGET", group, "type")
  return (kind == "consumer" or kind == "streams") and ERROR.OTHER_TYPE or ERROR.UNKNOWN_MEMBER_ID
end

local function judge(generation, member_id, instance)
  if instance ~= "" then
    local holder = call("HGET", instances, string.sub(instance, 2))
    if not holder then return unknown_member() end
    if holder ~= member_id then return ERROR.FENCED_INSTANCE_ID end
  end
  local record = call("HGET", members, member_id)
  if not record then return unknown_member() end
  if generation ~= current then return ERROR.ILLEGAL_GENERATION end
  if state == "CompletingRebalance" then return ERROR.REBALANCE_IN_PROGRESS end
  -- Never shorten a session: a parked member's lease may end later than its session.
  call("ZADD", sessions, "XX", "GT", now + string.match(record, '^{"session_timeout_ms":(%d+)'), member_id)
  return ERROR.NONE
end

-- The group has offsets, and yet only those of this commit: Redis lost the others (a deleted key).
local function note_lost()
  if events_max == "0" then return end
  call("XADD", events, "MAXLEN", "~", events_max, "*", "time", now_text, "group", name, "generation", current,
    "kind", "offsets_lost", "cause", "", "member", "", "instance_id", "", "client_id", "", "host", "", "reason", "",
    "detail", "", "members", "0", "broker", broker, "duration_ms", "0")
end

local function store(first, entry_count, tail)
  local new = 0
  for start = first, first + 2 * entry_count - 1, 2000 do
    local fields = {}
    for i = start, math.min(start + 2000, first + 2 * entry_count) - 1, 2 do
      fields[#fields + 1] = ARGV[i]
      fields[#fields + 1] = ARGV[i + 1] .. tail
    end
    new = new + call("HSET", offsets, unpack(fields))
  end
  if not has_offsets then
    call("HSET", group, "has_offsets", "1")
    has_offsets = "1"
  elseif new == entry_count and call("HLEN", offsets) == new then
    note_lost()
  end
end

local function commit(at, entry_count)
  if lease_ended then return ERROR.COORDINATOR_NOT_AVAILABLE end
  local retention, code = ARGV[at + 3], nil
  if is_share then
    code = ERROR.GROUP_ID_NOT_FOUND
  elseif not state or state == "Empty" then
    code = judge_without_members(ARGV[at], entry_count)
  else
    code = judge(ARGV[at], ARGV[at + 1], ARGV[at + 2])
  end
  if code == ERROR.NONE and is_overtaken(offsets, sent_at, now, at + 5, entry_count) then
    return ERROR.COORDINATOR_NOT_AVAILABLE
  end
  if code == ERROR.NONE and entry_count > 0 then
    local tail = ',"commit_time":' .. now_text
    if retention ~= "-1" then tail = string.format('%s,"expire_time":%.0f', tail, now + retention) end
    if state == "Empty" and current ~= "0" then -- these functions are defined only in this case
-- @include lib/offsets_reset
      note_reset(who, at + 5, entry_count)
    end
    store(at + 5, entry_count, tail .. "}")
  end
  return code
end

local at, first = 5, 3
while first <= #KEYS and ARGV[at] ~= "" do
  local overdue = load_group(first) and not lease_ended
  name, candidate, who = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local commit_count = tonumber(ARGV[at + 3])
  at = at + 4
  for _ = 1, commit_count do
    local entry_count = tonumber(ARGV[at + 4])
    codes[#codes + 1] = overdue and ERROR.EXPIRY_DUE or commit(at, entry_count)
    at = at + 5 + 2 * entry_count
  end
  first = first + 5
end
if first <= #KEYS then -- these functions are defined only in this case
-- @include lib/acknowledge_commits
  acknowledge_commits(first, at + 1, function(number) return codes[number + 2] == ERROR.NONE end)
end
return codes
