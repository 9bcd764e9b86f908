#!lua flags=no-writes
--[[ Iterate over a range of a log and return its offsets, counts and bytes. Record values never leave Redis.

A call starts with the entry that contains its first offset, and ends at its limits, or after ARGV[8]; the caller
continues from the returned offset. Entries are reported in steps; an entry that would make a step exceed the grain
begins the next. A step is {base offset of its first entry, end offset, entries, records, bytes, largest timestamp, ms}.
A compacted log has offsets between its entries that no entry contains.

KEYS[1]  log   stream
KEYS[2]  meta  hash  state, log_start, local_start (the first offset that Redis holds; if absent, log_start), epochs;
                     end (of a deleted log)
ARGV[1]  offset to start at, or the first visible offset in Redis if that is higher
ARGV[2]  offset to stop at, exclusive; -1 for the end of the log
ARGV[3]  limit of bytes
ARGV[4]  limit of records from the start offset on: an entry that has more is reported whole, its step ends inside it
ARGV[5]  1: the first entry is included even if it exceeds the limit of bytes; of records one at least
ARGV[6]  grain: limit of a step, bytes
ARGV[7]  grain: limit of a step, records
ARGV[8]  bytes of entries after which this call ends, at most 8 MiB
Returns  {NONE, log start, first visible offset in Redis, log end, epochs, next offset, steps}; safe to run twice
Errors   UNKNOWN_TOPIC_OR_PARTITION  deleted, or never created; and the end that the log had, -1 if that is unknown
         KAFKA_STORAGE_ERROR         and the id of an entry in the range, or at the end, that no broker appended
]]
-- @include lib/errors
-- @include lib/last_entry
local log, meta = KEYS[1], KEYS[2]
local start, stop, bytes_max, records_max = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local at_least_one, grain_bytes, grain_records = ARGV[5] == "1", tonumber(ARGV[6]), tonumber(ARGV[7])
local WALKED_BYTES_MAX, STEPS_MAX, PAGE_MAX = math.min(tonumber(ARGV[8]), 8 * 1024 * 1024), 1000, 512

local function id(offset, sequence) return string.format("%.0f-%d", offset, sequence) end

local function base_of(entry) return tonumber(string.match(entry[1], "^%d+")) end

local function uint32(batch, at)
  local a, b, c, d = string.byte(batch, at, at + 3)
  return d and ((a * 256 + b) * 256 + c) * 256 + d or 0
end

local function measure(entry)
  local records, bytes, timestamp = 0, 0, -1
  for i = 1, #entry[2], 2 do
    if entry[2][i] == "b" then
      local batch = entry[2][i + 1]
      local high = uint32(batch, BATCH.MAX_TIMESTAMP) -- its upper half
      records = records + uint32(batch, BATCH.RECORD_COUNT)
      bytes = bytes + #batch
      if high < 2147483648 then timestamp = math.max(timestamp, high * 4294967296 + uint32(batch, BATCH.MAX_TIMESTAMP + 4)) end
    end
  end
  return entry_end(entry, true), records, bytes, timestamp -- readers quarantine a batch with a wrong delta
end

local function first_id()
  local holder, stop_of_holder = last_entry(log, id(start, 1))
  return holder and stop_of_holder > start and holder[1] or id(start, 0)
end

local state, log_start, local_start, epochs, end_of_deleted =
  unpack(redis.call("HMGET", meta, "state", "log_start", "local_start", "epochs", "end"))
if state ~= "ready" then return { ERROR.UNKNOWN_TOPIC_OR_PARTITION, tonumber(end_of_deleted or -1) } end
local shown = math.max(tonumber(log_start), tonumber(local_start or 0))
local _, finish, stray = last_entry(log, "+")
if stray then return { ERROR.KAFKA_STORAGE_ERROR, stray } end
finish = finish or 0
start = math.max(start, shown)
if stop < 0 or stop > finish then stop = finish end

local steps, step, taken_entries, taken_bytes, taken_records, page = {}, nil, 0, 0, 0, 4
local position, from = start, start < stop and first_id()
while position < stop and taken_bytes < WALKED_BYTES_MAX and #steps < STEPS_MAX do
  local entries = redis.call("XRANGE", log, from, id(stop, 0), "COUNT", page)
  for _, entry in ipairs(entries) do
    local end_of_entry, records, bytes, timestamp = measure(entry)
    if not end_of_entry then return { ERROR.KAFKA_STORAGE_ERROR, entry[1] } end
    local first_of_all = at_least_one and taken_entries == 0
    local from_offset = math.max(base_of(entry), start)
    local wanted = math.max(0, math.min(records, end_of_entry - from_offset)) -- offsets below the start have records too
    local records_left = math.max(records_max - taken_records, first_of_all and 1 or 0)
    if (taken_bytes + bytes > bytes_max and not first_of_all) or (wanted > 0 and records_left < 1) then
      return { ERROR.NONE, tonumber(log_start), shown, finish, epochs, position, steps }
    end
    if not step or step[5] + bytes > grain_bytes or step[4] + records > grain_records then
      step = { base_of(entry), 0, 0, 0, 0, -1 }
      steps[#steps + 1] = step
    end
    local is_cut = wanted > records_left
    position, from = math.min(is_cut and from_offset + records_left or end_of_entry, stop), id(base_of(entry), 2)
    taken_entries, taken_bytes, taken_records = taken_entries + 1, taken_bytes + bytes, taken_records + wanted
    step[2], step[3], step[4], step[5] = position, step[3] + 1, step[4] + records, step[5] + bytes
    step[6] = math.max(step[6], timestamp)
    if is_cut then return { ERROR.NONE, tonumber(log_start), shown, finish, epochs, position, steps } end
  end
  if #entries < page then position = stop end
  local bytes_left = math.min(WALKED_BYTES_MAX, bytes_max) - taken_bytes
  page = math.max(1, math.min(PAGE_MAX, math.floor(bytes_left * taken_entries / math.max(taken_bytes, 1))))
end
return { ERROR.NONE, tonumber(log_start), shown, finish, epochs, position, steps }
