-- Changes the rows of a share-partition `p` (`lib/share_partition`). Reads the group's configs (KEYS[1]) and the names of
-- its share-partitions (KEYS[2]), writes its dead letters (KEYS[3]), the shard's deadlines (KEYS[4]) and the four keys of `p`.
-- @include lib/clock
-- @include lib/share_partition
local limit, lock_ms, locks_max, isolation, made_available, backoff_ms, backoff_max_ms, by_key, reads_time
local group_ref, dead_letter_topic, dead_letter_copy
local LETTERS_MAX, LETTER_RECORDS_MAX, LETTERS_LATE_MS = 10000, 500, 60000

-- The group's configs, or the defaults of the broker; `ref` is the group's name in the shard's keys.
local function load_share_configs(ref, default_limit, default_lock_ms, default_locks_max)
  local found = call("HMGET", KEYS[1], "share.delivery.count.limit", "share.record.lock.duration.ms",
    "share.partition.max.record.locks", "share.isolation.level", "share.retry.backoff.ms", "share.retry.backoff.max.ms",
    "share.ordering", "share.deliver.at.enable", "errors.deadletterqueue.topic.name",
    "errors.deadletterqueue.copy.record.enable")
  limit, lock_ms = tonumber(found[1] or default_limit), tonumber(found[2] or default_lock_ms)
  locks_max, isolation = tonumber(found[3] or default_locks_max), found[4] or "read_uncommitted"
  backoff_ms, backoff_max_ms = tonumber(found[5] or 0), tonumber(found[6] or 60000)
  by_key, reads_time = found[7] == "key", found[8] == "true"
  group_ref, dead_letter_topic, dead_letter_copy = ref, found[9] or "", found[10] == "true" and "1" or "0"
end

-- Add to one of the share-partition's totals, `redelivered` or `failed`.
local function tally(p, field, number)
  p.totals = p.totals or {}
  p.totals[field] = (p.totals[field] or 0) + number
end

-- Records of a row failed for good: they wait in the queue of the group's dead letters, if it has a topic for them. The
-- queue has a deadline, at which a broker writes what is in it.
local function fail(p, row, cause)
  tally(p, "failed", length(row))
  if dead_letter_topic == "" then return end
  local partition = string.match(p.hash, ":share:(%x+:%d+)$")
  local topic = call("HGET", KEYS[2], partition) or ""
  for first = row.first, row.last, LETTER_RECORDS_MAX do
    local last = math.min(first + LETTER_RECORDS_MAX - 1, row.last)
    call("XADD", KEYS[3], "*", "topic", topic, "partition", partition, "first", text(first), "last", text(last),
      "deliveries", row.count, "cause", cause, "target", dead_letter_topic, "copy", dead_letter_copy)
  end
  local item, now = "dead-letters|" .. group_ref, now_ms()
  local deadline = tonumber(call("ZSCORE", KEYS[4], item) or 0)
  if deadline == 0 or deadline > now + LETTERS_LATE_MS then call("ZADD", KEYS[4], text(now), item) end
end

-- Whether so much waits for the dead-letter topic that the group gets no records.
local function has_too_many_letters()
  return dead_letter_topic ~= "" and call("XLEN", KEYS[3]) >= LETTERS_MAX
end

local function save_partition(p)
  call("HSET", p.hash, "end", text(p.last_end), "unfinished", text(p.unfinished))
  if p.chained ~= p.was_chained then call("HSET", p.hash, "chained", text(p.chained)) end
  for field, number in pairs(p.totals or {}) do call("HINCRBY", p.hash, field, text(number)) end
end

local function write_row(p, row)
  call("HSET", p.hash, text(row.first), text(row.last) .. " " .. row.count .. " " .. text(row.size) .. " " .. row.owner)
end

local function make_available(p, row)
  row.owner, made_available = "", true
  write_row(p, row)
  call("ZADD", p.available, text(row.first), text(row.first))
end

local function lock(p, row, deadline)
  write_row(p, row)
  call("ZADD", p.acquired, text(row.first), text(row.first))
  call("ZADD", p.locks, text(deadline), text(row.first))
end

-- Take a row off the share-partition; what remains of it is put back by its caller.
local function take_out(p, row)
  local first = text(row.first)
  call("HDEL", p.hash, first)
  if call("ZREM", p.acquired, first) == 1 then call("ZREM", p.locks, first) else call("ZREM", p.available, first) end
end

local function part_of(row, first, last)
  return { first = first, last = last, count = row.count, size = row.size, owner = row.owner }
end

-- A row that was taken out waits until a time.
local function delay(p, row, deadline)
  row.owner, made_available = "", true
  lock(p, row, deadline)
end

-- The records of a key, in a chain: the field k<offset> is the key of a record in flight, h<key> its last record,
-- n<offset> the next record of the same key, which waits, and t<offset> a time before which that one is not delivered.
local function chain(p, row, key)
  local first = text(row.first)
  local before = call("HGET", p.hash, "h" .. key)
  call("HSET", p.hash, "h" .. key, first, "k" .. first, key)
  p.chained = p.chained + 1
  if not before then return false end
  call("HSET", p.hash, "n" .. before, first)
  return true
end

-- A record of a key waits no more.
local function unchain(p, first)
  local row, deliver_at = rows_of(p, { first })[1], tonumber(call("HGET", p.hash, "t" .. first) or 0)
  if deliver_at > 0 then call("HDEL", p.hash, "t" .. first) end
  take_out(p, row)
  if deliver_at > now_ms() then delay(p, row, deliver_at) else make_available(p, row) end
end

-- A row that was taken out leaves the window.
local function finish(p, row)
  p.unfinished = p.unfinished - length(row)
  if p.chained == 0 then return end
  for offset = row.first, row.last do
    local first = text(offset)
    local found = call("HMGET", p.hash, "k" .. first, "n" .. first)
    if found[1] then
      call("HDEL", p.hash, "k" .. first, "n" .. first)
      p.chained = p.chained - 1
      if found[2] then
        unchain(p, found[2])
      elseif call("HGET", p.hash, "h" .. found[1]) == first then
        call("HDEL", p.hash, "h" .. found[1])
      end
    end
  end
end

-- A delivery of a row that was taken out has failed: the row is available again, at once or after the group's backoff,
-- unless this was the last delivery.
local function end_delivery(p, row)
  if row.count >= limit then
    finish(p, row)
    fail(p, row, "deliveries")
  elseif backoff_ms > 0 then
    delay(p, row, now_ms() + math.min(backoff_ms * 2 ^ (row.count - 1), backoff_max_ms))
  else
    make_available(p, row)
  end
end

local function expire_locks(p, now)
  for _, row in ipairs(rows_of(p, call("ZRANGEBYSCORE", p.locks, "-inf", text(now)))) do
    take_out(p, row)
    if row.owner == "" then make_available(p, row) else end_delivery(p, row) end
  end
end
