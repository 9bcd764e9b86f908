-- Changes the rows of a share-partition `p` (`lib/share_partition`). Reads the group's configs (KEYS[1]) and the names of
-- its share-partitions (KEYS[2]), writes its dead letters (KEYS[3]), the shard's deadlines (KEYS[4]) and the four keys of `p`.
-- @include lib/now_ms
-- @include lib/share_partition
-- @include lib/number_text
local share_rows = {}
local LETTERS_MAX, LETTER_RECORDS_MAX, LETTERS_LATE_MS, CHECKED_MS, WAITING_MAX = 10000, 500, 60000, 10000, 10000
local ROWS_MAX = 20000 -- as many as WAITING_MAX and the largest window have

-- The group's configs, or the defaults of the broker; `ref` is the group's name in the shard's keys. `made_available` is
-- set if the script makes records available, or lets a full window grow, which its caller publishes. `rows_left` counts
-- down from `rows_max` for each row that the script reads, and what costs as much: at 0 it leaves the rest to the next.
function share_rows.read_group(ref, default_limit, default_lock_ms, default_locks_max, rows_max)
  local found = redis.call("HMGET", KEYS[1], "share.delivery.count.limit", "share.record.lock.duration.ms",
    "share.partition.max.record.locks", "share.isolation.level", "share.retry.backoff.ms", "share.retry.backoff.max.ms",
    "share.ordering", "share.deliver.at.enable", "errors.deadletterqueue.topic.name",
    "errors.deadletterqueue.copy.record.enable")
  local by_key, reads_time, backoff_ms = found[7] == "key", found[8] == "true", tonumber(found[5] or 0)
  return {
    may_wait = by_key or reads_time or backoff_ms > 0, ref = ref, limit = tonumber(found[1] or default_limit), lock_ms = tonumber(found[2] or default_lock_ms),
    locks_max = tonumber(found[3] or default_locks_max), isolation = found[4] or "read_uncommitted",
    backoff_ms = backoff_ms, backoff_max_ms = tonumber(found[6] or 60000),
    by_key = by_key, reads_time = reads_time,
    dead_letter_topic = found[9] or "", dead_letter_copy = found[10] == "true" and "1" or "0", made_available = false,
    rows_max = tonumber(rows_max), rows_left = tonumber(rows_max),
  }
end

-- Add to one of the share-partition's totals, `redelivered` or `failed`.
function share_rows.tally(p, field, number)
  p.totals = p.totals or {}
  p.totals[field] = (p.totals[field] or 0) + number
end

-- Records of a row failed for good: they wait in the queue of the group's dead letters, if it has a topic for them. The
-- queue has a deadline, at which a broker writes what is in it.
function share_rows.fail(p, row, cause)
  share_rows.tally(p, "failed", share_partition.length(row))
  if p.group.dead_letter_topic == "" then return end
  local partition = string.match(p.hash, ":share:(%x+:%d+)$")
  local topic = redis.call("HGET", KEYS[2], partition) or ""
  for first = row.first, row.last, LETTER_RECORDS_MAX do
    p.group.rows_left = p.group.rows_left - 1
    local last = math.min(first + LETTER_RECORDS_MAX - 1, row.last)
    redis.call("XADD", KEYS[3], "*", "topic", topic, "partition", partition, "first", number_text(first),
      "last", number_text(last), "deliveries", row.count, "cause", cause, "target", p.group.dead_letter_topic, "copy", p.group.dead_letter_copy)
  end
  local item, now = "dead-letters|" .. p.group.ref, now_ms()
  local deadline = tonumber(redis.call("ZSCORE", KEYS[4], item) or 0)
  if deadline == 0 or deadline > now + LETTERS_LATE_MS then redis.call("ZADD", KEYS[4], number_text(now), item) end
end

-- Whether the window that begins at `start` may not grow, when `more` records of it are in no row yet. As in Kafka it has
-- at most `locks_max` offsets. In a group where records wait for their key or a time, those that are finished behind a
-- waiting one do not count, and those that wait, longer than a lock lasts, have a limit of their own: they hold up no
-- other records.
function share_rows.is_window_full(p, start, more)
  local group, unfinished = p.group, p.unfinished + more
  if not group.may_wait then return p.last_end - start >= group.locks_max end
  if unfinished < group.locks_max then return false end
  local waiting = redis.call("ZCARD", p.acquired) - redis.call("ZCARD", p.locks)
    + redis.call("ZCOUNT", p.locks, "(" .. number_text(now_ms() + group.lock_ms), "+inf")
  return waiting >= WAITING_MAX or unfinished - waiting >= group.locks_max
end

-- Whether a share-partition has so many rows that none is split: only parts of very large batches are so many.
function share_rows.has_too_many(p)
  return p.unfinished > ROWS_MAX and redis.call("ZCARD", p.acquired) + redis.call("ZCARD", p.available) >= ROWS_MAX
end

-- Whether so much waits for the dead-letter topic that the group gets no records.
function share_rows.has_too_many_letters(group)
  return group.dead_letter_topic ~= "" and redis.call("XLEN", KEYS[3]) >= LETTERS_MAX
end

function share_rows.save(p)
  redis.call("HSET", p.hash, "end", number_text(p.last_end), "unfinished", number_text(p.unfinished))
  if p.chained ~= p.was_chained then redis.call("HSET", p.hash, "chained", number_text(p.chained)) end
  for field, number in pairs(p.totals or {}) do redis.call("HINCRBY", p.hash, field, number_text(number)) end
end

function share_rows.write(p, row)
  local owner = row.owner == "" and "" or row.owner .. "\t" .. row.session
  redis.call("HSET", p.hash, number_text(row.first),
    number_text(row.last) .. " " .. row.count .. " " .. number_text(row.size) .. " " .. owner)
end

function share_rows.make_available(p, row)
  row.owner, p.group.made_available = "", true
  share_rows.write(p, row)
  redis.call("ZADD", p.available, number_text(row.first), number_text(row.first))
end

function share_rows.lock(p, row, deadline)
  share_rows.write(p, row)
  redis.call("ZADD", p.acquired, number_text(row.first), number_text(row.first))
  redis.call("ZADD", p.locks, number_text(deadline), number_text(row.first))
end

-- Take a row off the share-partition; what remains of it is put back by its caller. Whether it was acquired. The row
-- itself goes last: where a key is of another type, the script ends before it, and `restore_lost` finds the row.
function share_rows.take_out(p, row)
  local first = number_text(row.first)
  local was_acquired = redis.call("ZREM", p.acquired, first) == 1
  redis.call("ZREM", was_acquired and p.locks or p.available, first)
  redis.call("HDEL", p.hash, first)
  return was_acquired
end

function share_rows.part_of(row, first, last)
  return { first = first, last = last, count = row.count, size = row.size, owner = row.owner, session = row.session }
end

-- A row that was taken out waits until a time.
function share_rows.delay(p, row, deadline)
  row.owner, p.group.made_available = "", true
  share_rows.lock(p, row, deadline)
end

-- The records of a key, in a chain: the field k<offset> is the key of a record in flight, h<key> its last record,
-- n<offset> the next record of the same key, which waits, and t<offset> a time before which that one is not delivered.
function share_rows.chain(p, row, key)
  local first = number_text(row.first)
  local before = redis.call("HGET", p.hash, "h" .. key)
  redis.call("HSET", p.hash, "h" .. key, first, "k" .. first, key)
  p.chained = p.chained + 1
  if not before then return false end
  redis.call("HSET", p.hash, "n" .. before, first)
  return true
end

-- A record of a key waits no more.
local function unchain(p, first)
  local row, deliver_at = share_partition.rows_of(p, { first })[1], tonumber(redis.call("HGET", p.hash, "t" .. first) or 0)
  if deliver_at > 0 then redis.call("HDEL", p.hash, "t" .. first) end
  share_rows.take_out(p, row)
  if deliver_at > now_ms() then share_rows.delay(p, row, deliver_at) else share_rows.make_available(p, row) end
end

-- A row that was taken out leaves the window.
function share_rows.finish(p, row)
  p.unfinished = p.unfinished - share_partition.length(row)
  if p.chained == 0 then return end
  p.group.rows_left = p.group.rows_left - share_partition.length(row)
  for offset = row.first, row.last do
    local first = number_text(offset)
    local found = redis.call("HMGET", p.hash, "k" .. first, "n" .. first)
    if found[1] then
      redis.call("HDEL", p.hash, "k" .. first, "n" .. first)
      p.chained = p.chained - 1
      if found[2] then
        unchain(p, found[2])
      elseif redis.call("HGET", p.hash, "h" .. found[1]) == first then
        redis.call("HDEL", p.hash, "h" .. found[1])
      end
    end
  end
end

-- A delivery of a row that was taken out has failed: the row is available again, at once or after the group's backoff,
-- unless this was the last delivery.
function share_rows.end_delivery(p, row)
  if row.count >= p.group.limit then
    share_rows.finish(p, row)
    share_rows.fail(p, row, "deliveries")
  elseif p.group.backoff_ms > 0 then
    share_rows.delay(p, row, now_ms() + math.min(p.group.backoff_ms * 2 ^ (row.count - 1), p.group.backoff_max_ms))
  else
    share_rows.make_available(p, row)
  end
end

-- Put rows back whose entry in `available`, `acquired` or `locks` was lost: somebody deleted the key. Asked when nothing is
-- available though something is unfinished, and then at most every CHECKED_MS: it reads all rows.
function share_rows.restore_lost(p, now)
  if p.unfinished <= 0 or redis.call("EXISTS", p.available) == 1 then return end
  if now - tonumber(redis.call("HGET", p.hash, "checked") or 0) < CHECKED_MS then return end
  redis.call("HSET", p.hash, "checked", number_text(now))
  local fields = redis.call("HGETALL", p.hash)
  p.group.rows_left = p.group.rows_left - #fields / 2
  for i = 1, #fields, 2 do
    local row = tonumber(fields[i]) and share_partition.row_of(fields[i], fields[i + 1])
    if row and not redis.call("ZSCORE", p.acquired, fields[i]) then
      redis.call("ZREM", p.locks, fields[i])
      share_rows.make_available(p, row)
    elseif row and not redis.call("ZSCORE", p.locks, fields[i]) and (row.owner ~= "" or p.chained == 0) then
      redis.call("ZADD", p.locks, number_text(now + p.group.lock_ms), fields[i])
    end
  end
end

-- Remove the locks of rows that Redis has lost.
local function unlock_lost(p, firsts, rows)
  local found = {}
  for _, row in ipairs(rows) do found[number_text(row.first)] = true end
  for _, first in ipairs(firsts) do
    if not found[first] then redis.call("ZREM", p.locks, first) end
  end
end

-- Expire locks that are overdue, in the order of their deadlines; false if there may be more. Each of them leaves
-- `locks`, also where keys were lost: the next call finds others.
function share_rows.expire_locks(p, now)
  local most = math.max(p.group.rows_left, 0)
  local firsts = redis.call("ZRANGEBYSCORE", p.locks, "-inf", number_text(now), "LIMIT", 0, number_text(most))
  local rows = share_partition.rows_of(p, firsts)
  if #rows < #firsts then unlock_lost(p, firsts, rows) end
  for _, row in ipairs(rows) do
    if not share_rows.take_out(p, row) then redis.call("ZREM", p.locks, number_text(row.first)) end
    if row.owner == "" then share_rows.make_available(p, row) else share_rows.end_delivery(p, row) end
  end
  return #firsts < most
end
