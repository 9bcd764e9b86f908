#!lua flags=allow-oom
--[[ Stage the offsets that a producer commits in its transaction; they apply when the transaction is committed.

KEYS[1]  group      hash  type, state, generation, commits_fenced_until, offsets_deleted_at
KEYS[2]  members    hash  member id -> its record
KEYS[3]  instances  hash  static instance id -> member id
KEYS[4]  offsets    hash  <topic>:<partition> -> JSON; ":-1", the partitions with staged offsets
KEYS[5]  staged     hash  <producer id>:<topic>:<partition> -> JSON; of older brokers producer id -> its last end
KEYS[6]  groups     hash  the shard's groups: name -> "<type> <state> <protocol type>"
KEYS[7]  consumers  hash  member id -> its record, of a KIP-848 group
KEYS[8]  ended      zset  the shard's: <producer id> <group> -> ended_ms of its last transaction
ARGV[1]  the group's name in the shard's keys
ARGV[2]  "<id> <locator>" in case the group is created
ARGV[3]  producer id
ARGV[4]  ended_ms of the producer's transaction before this one: a later one ended since if it is not the last end
ARGV[5]  generation, -1 without
ARGV[6]  member id
ARGV[7]  "" or "=" and the instance id
ARGV[8]  when the broker's lease ends, ms by Redis's clock; 0 for a caller without a lease
ARGV[9]  when the request came, ms by Redis's clock; 0: unknown
ARGV[10] and on: field, JSON without commit time and closing brace, ...; 1,000 at most
Returns  {NONE}; safe to run twice
Errors   ILLEGAL_GENERATION       another generation than the group's
         STALE_MEMBER_EPOCH       a newer epoch than that of a member of a KIP-848 group, or an older one and some
                                  partition was not assigned to the member ever since (KIP-1251)
         UNKNOWN_MEMBER_ID        not a member, or an unknown instance
         FENCED_INSTANCE_ID       another member took over the static instance
         GROUP_ID_NOT_FOUND       a share group, or no group and the commit has a generation
         CONCURRENT_TRANSACTIONS  the transaction has ended meanwhile
         COORDINATOR_NOT_AVAILABLE  the lease has ended: newer offsets of the transaction may have been staged through
                                  another broker; or the script was late and another one was, or offsets were deleted
]]
-- @include lib/errors
-- @include lib/now_ms
-- @include lib/create_empty_group
-- @include lib/last_end
-- @include lib/staged_list
-- @include lib/is_late
-- @include lib/is_overtaken
-- @include lib/member_epoch
-- @include lib/is_converted_epoch
local group, members, instances, offsets, staged, groups = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local producer_id, generation, member_id, instance = ARGV[3], ARGV[5], ARGV[6], ARGV[7]
local now = now_ms()
local lease_end, arrived_ms, FIRST = tonumber(ARGV[8]), tonumber(ARGV[9]), 10

if lease_end > 0 and now >= lease_end then return { ERROR.COORDINATOR_NOT_AVAILABLE } end
if last_end(KEYS[8], staged, producer_id, ARGV[1]) > tonumber(ARGV[4]) then return { ERROR.CONCURRENT_TRANSACTIONS } end

local state, current, kind, fenced_until = unpack(redis.call("HMGET", group, "state", "generation", "type", "commits_fenced_until"))
if kind == "share" then return { ERROR.GROUP_ID_NOT_FOUND } end

local function refuse_classic()
  if tonumber(generation) < 0 then
    -- A member removed by an offset reset: its old offset must not undo the reset.
    if fenced_until and now < tonumber(fenced_until) then return ERROR.UNKNOWN_MEMBER_ID end
    if not state or state == STATE.EMPTY or (member_id == "" and instance == "") then return end
  elseif not state then
    return ERROR.GROUP_ID_NOT_FOUND
  end
  if instance ~= "" then
    local holder = redis.call("HGET", instances, string.sub(instance, 2))
    if not holder then return ERROR.UNKNOWN_MEMBER_ID end
    if holder ~= member_id then return ERROR.FENCED_INSTANCE_ID end
  end
  local record = redis.call("HGET", members, member_id)
  if not record then return ERROR.UNKNOWN_MEMBER_ID end
  return generation ~= current and not is_converted_epoch(state, current, record, generation) and ERROR.ILLEGAL_GENERATION
end

-- As for OffsetCommit, the instance id is not checked.
local function refuse_consumer()
  if tonumber(generation) < 0 and member_id == "" then return end
  local record = redis.call("HGET", KEYS[7], member_id)
  if not record then return ERROR.UNKNOWN_MEMBER_ID end
  return member_epoch.is_stale(record, tonumber(generation), FIRST, #ARGV) and member_epoch.stale_code(record)
end

local refused
local has_epochs = (kind == "consumer" or kind == "streams") and state ~= STATE.EMPTY
if has_epochs then refused = refuse_consumer() else refused = refuse_classic() end
if refused then return { refused } end
if is_late(arrived_ms, now) then
  local deleted_at = tonumber(redis.call("HGET", group, "offsets_deleted_at") or 0)
  local entry_count = (#ARGV - FIRST + 1) / 2
  if deleted_at > arrived_ms or is_overtaken(staged, arrived_ms, FIRST, entry_count, nil, producer_id .. ":") then
    return { ERROR.COORDINATOR_NOT_AVAILABLE }
  end
end
if not state then
  create_empty_group(group, groups, ARGV[1], ARGV[2], now)
end

-- Staged offsets of one partition are ordered by their times, and a commit by its value: it is in `over` if it was first.
local list, last_ms = staged_list.read(offsets, staged)
local noted = last_ms >= now and staged_list.partitions(list) or {}
local newest_ms, partitions, added = last_ms, {}, {}
for i = FIRST, #ARGV, 2 do partitions[#partitions + 1] = ARGV[i] end
local committed = redis.call("HMGET", offsets, unpack(partitions))
for i, partition in ipairs(partitions) do
  local staged_ms = noted[partition] and last_ms + 1 or now
  local entry = ARGV[FIRST + 2 * i - 1] .. string.format(OFFSET.NEW_COMMIT_TIME .. "}", staged_ms)
  local is_new = redis.call("HSET", staged, producer_id .. ":" .. partition, entry .. (committed[i] or ""))
  if is_new == 1 then added[#added + 1] = partition end
  newest_ms = math.max(newest_ms, staged_ms)
end
staged_list.write(offsets, staged_list.add(list, producer_id, added), newest_ms)
return { ERROR.NONE }
