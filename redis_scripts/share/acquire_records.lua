#!lua flags=allow-oom
--[[ Acquire records of share-partitions for a member (KIP-932): first those that are available again, then, of a
share-partition for which the caller has read batches, the records behind its window. Locks that are overdue expire.

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
ARGV[6]     limit of records; a batch may exceed it, unless ARGV[7] is 1
ARGV[7]     1: never more records than the limit
ARGV[8]     records from which on an acquired range is not extended by the next batch
ARGV[9]     the group's name in the shard's keys
ARGV[10]    id of the member's share session
ARGV[11...]  for each share-partition: log start offset, the end of the window that the caller has read from, number of
            batches, and for each batch: first offset, last offset, 1 if its records are of an aborted transaction; or, of
            a single record, "0 <key> <time>": its key or "-", and the time in ms before which it is not delivered or 0
Returns  {NONE, lock duration in ms, isolation level with " key" if records are in the order of their key and " time" if
         they may have a time of delivery, records acquired, 1 if nothing more may be acquired,
         for each share-partition, in order, that is not left to the next call: {epoch, start offset, end, 1 if the
         window may grow, ms until a lock expires or -1, then first offset, last offset and delivery count of each
         acquired range}; {""} if it is not initialised}. Run twice, the second run acquires other records: the first
         ones stay locked until their locks expire.
Errors   none
]]
-- @include lib/errors
-- @include lib/now_ms
-- @include lib/number_text
-- @include lib/share_partition
-- @include lib/share_rows
local group = share_rows.read_group(ARGV[9], ARGV[1], ARGV[2], ARGV[3], ARGV[4])
local member_id, session, records_max, exact = ARGV[5], ARGV[10], tonumber(ARGV[6]), ARGV[7] == "1"
local batch_size, now = tonumber(ARGV[8]), now_ms()
local taken, is_full = 0, records_max <= 0 or share_rows.has_too_many_letters(group)
-- From this delivery on a batch is delivered in smaller and smaller parts, to find the record that fails.
local whole_until = group.limit > 2 and not group.by_key and math.ceil(group.limit / 2) or math.huge

local function grant(p, ranges, row)
  row.owner, row.session = member_id, session
  share_rows.lock(p, row, now + group.lock_ms)
  taken = taken + share_partition.length(row)
  if row.count > 1 then share_rows.tally(p, "redelivered", share_partition.length(row)) end
  is_full = is_full or taken >= records_max
  ranges[#ranges + 1] = row
end

-- Number of records of an available row that one acquisition may have; its next delivery is number `count`.
local function part_size(row, count)
  if count <= whole_until then return share_partition.length(row) end
  if count >= group.limit then return 1 end
  return math.max(1, math.floor(row.size / 2 ^ (count - whole_until)))
end

local function firsts_below(key, log_start, most)
  return redis.call("ZRANGEBYSCORE", key, "-inf", "(" .. number_text(log_start), "LIMIT", 0, number_text(most))
end

-- Finish what is available below the log start; false if there may be more.
local function finish_below(p, log_start)
  repeat
    local most = group.rows_left
    if most <= 0 then return false end
    local firsts = firsts_below(p.available, log_start, most)
    local rows = share_partition.rows_of(p, firsts)
    for _, row in ipairs(rows) do
      share_rows.take_out(p, row)
      local below = math.min(row.last, log_start - 1)
      share_rows.finish(p, share_rows.part_of(row, row.first, below))
      if below < row.last then share_rows.make_available(p, share_rows.part_of(row, below + 1, row.last)) end
    end
    if #rows > 0 and #firsts >= most then return false end
  until #rows == 0 or p.chained == 0
  return true
end

-- Whether rows below the log start waited for their time, which wait no more. Those behind very many that members have
-- acquired are found when these are finished.
local function end_waits_below(p, log_start)
  local found = false
  for _, row in ipairs(share_partition.rows_of(p, firsts_below(p.acquired, log_start, group.rows_max))) do
    if row.owner == "" and redis.call("ZSCORE", p.locks, number_text(row.first)) then
      share_rows.take_out(p, row)
      share_rows.make_available(p, row)
      found = true
    end
  end
  return found
end

-- The window begins at the log start; false if there may be more to finish below it.
local function drop_below(p, log_start)
  repeat
    if not finish_below(p, log_start) then return false end
  until not end_waits_below(p, log_start)
  if p.last_end < log_start then p.last_end = log_start end
  return true
end

-- Records that are available again, from the lowest offset; true if what is behind them must wait.
local function acquire_available(p, ranges)
  local pending
  local function flush()
    if pending then grant(p, ranges, pending) end
    pending = nil
  end
  local firsts = redis.call("ZRANGE", p.available, 0, math.min(records_max, 2000) - 1)
  for _, row in ipairs(share_partition.rows_of(p, firsts)) do
    local count, left = row.count + 1, records_max - taken - (pending and share_partition.length(pending) or 0)
    if left <= 0 then break end
    local size = math.min(part_size(row, count), share_partition.length(row))
    local is_reduced = count > whole_until
    if is_reduced and count >= group.limit and (taken > 0 or pending) then break end
    if exact then size = math.min(size, left) end
    share_rows.take_out(p, row)
    if size < share_partition.length(row) then share_rows.make_available(p, share_rows.part_of(row, row.first + size, row.last)) end
    local granted = share_rows.part_of(row, row.first, row.first + size - 1)
    granted.count = count
    if is_reduced then
      flush()
      grant(p, ranges, granted)
      is_full = is_full or count >= group.limit
      return true
    end
    if pending and not group.by_key and pending.count == count and pending.last + 1 == granted.first and share_partition.length(pending) < batch_size then
      pending.last, pending.size = granted.last, share_partition.length(pending) + share_partition.length(granted)
    else
      flush()
      granted.size = share_partition.length(granted)
      pending = granted
    end
  end
  flush()
  return false
end

-- One new record that has a key, or a time of delivery.
local function acquire_one(p, ranges, offset, key, deliver_at)
  local row = { first = offset, last = offset, count = 0, size = 1, owner = "" }
  p.unfinished = p.unfinished + 1
  if key ~= "-" and share_rows.chain(p, row, key) then
    share_rows.write(p, row)
    redis.call("ZADD", p.acquired, number_text(offset), number_text(offset))
    if deliver_at > now then redis.call("HSET", p.hash, "t" .. number_text(offset), number_text(deliver_at)) end
  elseif deliver_at > now then
    share_rows.delay(p, row, deliver_at)
  else
    row.count = 1
    grant(p, ranges, row)
  end
end

-- The records of the batches from ARGV[at] on, which begin at the end of the window, in at most `rows_max` rows.
local function acquire_new(p, ranges, at, batch_count)
  local pending
  local start, row_count = share_partition.start_of(p), 0
  local function flush()
    if pending then
      pending.size = share_partition.length(pending)
      p.unfinished = p.unfinished + pending.size
      grant(p, ranges, pending)
      row_count = row_count + 1
    end
    pending = nil
  end
  for i = at, at + 3 * batch_count - 3, 3 do
    local first, last = math.max(tonumber(ARGV[i]), p.last_end), tonumber(ARGV[i + 1])
    local left = records_max - taken - (pending and share_partition.length(pending) or 0)
    if left <= 0 or row_count >= group.rows_max then break end
    if share_rows.is_window_full(p, start, pending and share_partition.length(pending) or 0) then break end
    if ARGV[i + 2] == "1" then
      flush()
      if start == p.last_end then start = last + 1 end
      p.last_end = math.max(p.last_end, last + 1)
    elseif last >= first then
      local key, deliver_at = string.match(ARGV[i + 2], "^0 (%S+) (%d+)$")
      if key then flush() end
      if exact then last = math.min(last, first + left - 1) end
      if start == p.last_end then start = first end
      if key then
        acquire_one(p, ranges, first, key, tonumber(deliver_at))
        row_count = row_count + 1
      else
        if pending and (pending.last + 1 ~= first or share_partition.length(pending) >= batch_size) then flush() end
        pending = pending or { first = first, count = 1 }
        pending.last = last
      end
      p.last_end = last + 1
    end
  end
  flush()
end

local partitions, at = {}, 11
for key = 5, #KEYS, 4 do
  if group.rows_left <= 0 then break end
  local log_start, read_from, batch_count = tonumber(ARGV[at]), tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  local p, ranges = share_partition.open(key, group), {}
  if p then
    local is_ready = share_rows.expire_locks(p, now)
    if is_ready then
      share_rows.restore_lost(p, now)
      is_ready = drop_below(p, log_start)
    end
    if not is_ready then
      share_rows.save(p)
      break
    end
    local must_wait = not is_full and acquire_available(p, ranges)
    if not is_full and not must_wait and batch_count > 0 and p.last_end == read_from then
      acquire_new(p, ranges, at + 3, batch_count)
    end
    share_rows.save(p)
    local start, deadline = share_partition.start_of(p), share_partition.next_deadline(p)
    local is_open = not must_wait and not share_rows.is_window_full(p, start, 0)
    local found = { p.epoch, start, p.last_end, is_open and 1 or 0, deadline < 0 and -1 or math.max(deadline - now, 0) }
    for i, row in ipairs(ranges) do
      if group.by_key and i > 1 and found[#found] == row.count and found[#found - 1] + 1 == row.first then
        found[#found - 1] = row.last
      else
        found[#found + 1], found[#found + 2], found[#found + 3] = row.first, row.last, row.count
      end
    end
    partitions[#partitions + 1] = found
  else
    partitions[#partitions + 1] = { "" }
  end
  at = at + 3 + 3 * batch_count
end
if group.by_key then group.isolation = group.isolation .. " key" end
if group.reads_time then group.isolation = group.isolation .. " time" end
return { ERROR.NONE, group.lock_ms, group.isolation, taken, is_full and 1 or 0, unpack(partitions) }
