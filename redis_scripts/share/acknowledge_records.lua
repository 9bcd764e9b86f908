#!lua flags=allow-oom
--[[ Acknowledge records that a member has acquired (KIP-932): all batches of a share-partition, or none of them.

KEYS[1]     configs    hash    configs of the group
KEYS[2]     shares     hash    share-partitions of the group: <topic id in hex>:<partition> -> topic name
KEYS[3]     letters    stream  records that wait to be written to the group's dead-letter topic
KEYS[4]     deadlines  zset    the shard's index of deadlines
KEYS[5...]  partition  hash    end, epoch, unfinished, redelivered, failed, and rows: first offset -> last offset, count, size, owner;
            behind it available (zset, first offset of a row), acquired (zset, the same), locks (zset, first offset ->
            deadline, ms); four keys for each share-partition
ARGV[1]     default of the delivery limit
ARGV[2]     default of the lock duration, ms
ARGV[3]     default of the largest window, offsets
ARGV[4]     rows to read, about: the share-partitions behind them are left to the next call
ARGV[5]     member id
ARGV[6]     channel to notify of records that are available again
ARGV[7]     the group's name in the shard's keys
ARGV[8]     id of the member's share session, which has a lock that it renews, and undoes its own deliveries alone
ARGV[9...]  for each share-partition: its epoch when the records were acquired ("" if not known), number of batches, and
            for each batch: first offset, last offset, a digit for each offset or one for all: 0 and 1 finish a record,
            2 releases it, 3 rejects it, 4 renews its lock, 5 undoes its delivery
Returns  {NONE, lock duration in ms, the code of each share-partition, in order, that is not left to the next call};
         run twice, the second run finds the records finished, which is INVALID_RECORD_STATE, or NONE below the start
         offset
Errors   of each: INVALID_RECORD_STATE    an offset is not acquired by the member, its lock has expired, or
                                          the group does not permit to renew locks
                  INVALID_REQUEST         an offset is above the window, or too many rows would be split
                  NOT_LEADER_OR_FOLLOWER  the offsets of the share-partition were altered or deleted since the acquisition
]]
-- @include lib/errors
-- @include lib/now_ms
-- @include lib/number_text
-- @include lib/share_partition
-- @include lib/share_rows
local group = share_rows.read_group(ARGV[7], ARGV[1], ARGV[2], ARGV[3], ARGV[4])
local member_id, session, now = ARGV[5], ARGV[8], now_ms()
local RELEASE, REJECT, RENEW, UNDO = "2", "3", "4", "5"
local renews = redis.call("HGET", KEYS[1], "share.renew.acknowledge.enable") ~= "false"

-- The acquired rows that intersect a range, in order.
local function rows_within(p, first, last)
  local before = redis.call("ZREVRANGEBYSCORE", p.acquired, number_text(first), "-inf", "LIMIT", 0, 1)
  local firsts = redis.call("ZRANGEBYSCORE", p.acquired, "(" .. number_text(first), number_text(last))
  table.insert(firsts, 1, before[1])
  local rows = share_partition.rows_of(p, firsts)
  if before[1] and rows[1] and rows[1].last < first then table.remove(rows, 1) end
  return rows
end

-- Whether the member holds every offset of a range; for a delivery to undo, in this session. `p.is_split` is set if the
-- range has a part of a row.
local function is_held(p, first, last, kind)
  local next_offset = first
  for _, row in ipairs(rows_within(p, first, last)) do
    if row.first > next_offset or row.owner ~= member_id then return false end
    if kind == UNDO and row.session ~= session then return false end
    p.is_split = p.is_split or row.first < first or row.last > last
    next_offset = row.last + 1
  end
  return next_offset > last
end

local function add_run(runs, first, last, kind)
  local before = runs[#runs]
  if before and before[3] == kind and before[2] + 1 == first then
    before[2] = last
  else
    runs[#runs + 1] = { first, last, kind }
  end
end

-- Consecutive offsets that are acknowledged in the same way, from `start` on: those of one more batch.
local function runs_of(runs, first, last, types, start)
  if #types == 1 then
    if last >= start then add_run(runs, math.max(first, start), last, types) end
    return
  end
  local offset = math.max(first, start)
  while offset <= last do
    local place = offset - first + 1
    local kind = string.sub(types, place, place)
    local same = string.find(types, "[^" .. kind .. "]", place)
    local run_last = same and first + same - 2 or last
    add_run(runs, offset, run_last, kind)
    offset = run_last + 1
  end
end

local function apply(p, part, kind)
  if kind == RENEW then
    part.session = session
    share_rows.lock(p, part, now + group.lock_ms)
  elseif kind == UNDO then
    if part.count > 1 then share_rows.tally(p, "redelivered", -share_partition.length(part)) end
    part.count = part.count - 1
    share_rows.make_available(p, part)
  elseif kind == RELEASE then
    share_rows.end_delivery(p, part)
  else
    share_rows.finish(p, part)
    if kind == REJECT then share_rows.fail(p, part, "rejected") end
  end
end

local function acknowledge(p, first, last, kind)
  for _, row in ipairs(rows_within(p, first, last)) do
    local is_split = row.first < first or row.last > last
    local deadline = is_split and tonumber(redis.call("ZSCORE", p.locks, number_text(row.first)))
    if is_split or kind ~= RENEW then share_rows.take_out(p, row) end
    if row.first < first then share_rows.lock(p, share_rows.part_of(row, row.first, first - 1), deadline) end
    if row.last > last then share_rows.lock(p, share_rows.part_of(row, last + 1, row.last), deadline) end
    apply(p, share_rows.part_of(row, math.max(row.first, first), math.min(row.last, last)), kind)
  end
end

-- Whether this script has begun, and a share-partition may have more rows than are left: each is read twice.
local function is_for_next(p)
  if group.rows_left == group.rows_max or 2 * p.unfinished <= group.rows_left then return false end
  return 2 * redis.call("ZCARD", p.acquired) > group.rows_left
end

-- The code of a share-partition, or nil if it is left to the next call.
local function acknowledge_partition(key, at, batch_count)
  local p = share_partition.open(key, group)
  if not p or (ARGV[at] ~= "" and ARGV[at] ~= p.epoch) then return ERROR.NOT_LEADER_OR_FOLLOWER end
  if is_for_next(p) then return nil end
  if not share_rows.expire_locks(p, now) then
    share_rows.save(p)
    return nil
  end
  local start, runs, code = share_partition.start_of(p), {}, ERROR.NONE
  for i = at + 2, at + 1 + 3 * batch_count, 3 do
    local first, last = tonumber(ARGV[i]), tonumber(ARGV[i + 1])
    if last >= p.last_end then
      code = ERROR.INVALID_REQUEST
      break
    end
    runs_of(runs, first, last, ARGV[i + 2], start)
  end
  for _, run in ipairs(runs) do
    if code ~= ERROR.NONE then break end
    if (run[3] == RENEW and not renews) or not is_held(p, unpack(run)) then code = ERROR.INVALID_RECORD_STATE end
  end
  if code == ERROR.NONE and p.is_split and share_rows.has_too_many(p) then code = ERROR.INVALID_REQUEST end
  if code == ERROR.NONE then
    local was_full = share_rows.is_window_full(p, start, 0)
    for _, run in ipairs(runs) do acknowledge(p, run[1], run[2], run[3]) end
    if was_full and not share_rows.is_window_full(p, share_partition.start_of(p), 0) then group.made_available = true end
  end
  share_rows.save(p)
  return code
end

local answer, at = { ERROR.NONE, group.lock_ms }, 9
for key = 5, #KEYS, 4 do
  local batch_count = tonumber(ARGV[at + 1])
  local code = group.rows_left > 0 and acknowledge_partition(key, at, batch_count)
  if not code then break end
  answer[#answer + 1] = code
  at = at + 2 + 3 * batch_count
end
if group.made_available then redis.call("PUBLISH", ARGV[6], ARGV[7]) end
return answer
