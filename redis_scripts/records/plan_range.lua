#!lua flags=no-writes
--[[ Iterate over a range of a stream of format `record`, as archive/plan_range does over a log: offsets, counts, bytes.

An offset is (ms << sequence bits) | sequence of an entry's id. Entries whose sequence is beyond the bits have none: they
count as entries without a record. Below the log start nothing is read; trims by Redis programs are holes.

KEYS[1]  records  stream
KEYS[2]  meta     hash    state, log_start, epochs; end (of a deleted log)
ARGV[1]  offset to start at, or the log start if that is higher
ARGV[2]  offset to stop at, exclusive; -1 for the end of the stream
ARGV[3]  limit of bytes: names and values of fields
ARGV[4]  limit of records
ARGV[5]  1: one entry is included at least
ARGV[6]  grain: limit of a step, bytes
ARGV[7]  grain: limit of a step, records
ARGV[8]  sequence bits
ARGV[9]  bytes of entries after which this call ends, at most 8 MiB
Returns  {NONE, log start, log start, end, epochs, next offset, steps}; safe to run twice
Errors   UNKNOWN_TOPIC_OR_PARTITION  deleted, or never created; and the end that the log had, -1 if that is unknown
]]
-- @include lib/errors
-- @include lib/stream_ids
local records, meta, size = KEYS[1], KEYS[2], 2 ^ tonumber(ARGV[8])
local start, stop, bytes_max, records_max = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local at_least_one, grain_bytes, grain_records = ARGV[5] == "1", tonumber(ARGV[6]), tonumber(ARGV[7])
local WALKED_BYTES_MAX, STEPS_MAX, PAGE = math.min(tonumber(ARGV[9]), 8 * 1024 * 1024), 1000, 512

local function parse_id(id)
  local ms, sequence = string.match(id, "^(%d+)-(%d+)$")
  return tonumber(ms), tonumber(sequence)
end

local function id_of(offset) return string.format("%.0f-%.0f", math.floor(offset / size), offset % size) end

local function measure(fields, ms)
  local bytes, timestamp = 0, ms
  for i = 1, #fields, 2 do
    bytes = bytes + #fields[i] + #fields[i + 1]
    if fields[i] == "timestamp" then timestamp = tonumber(fields[i + 1]) or ms end
  end
  return bytes, timestamp
end

local state, log_start, epochs, end_of_deleted = unpack(redis.call("HMGET", meta, "state", "log_start", "epochs", "end"))
if state ~= "ready" then return { ERROR.UNKNOWN_TOPIC_OR_PARTITION, tonumber(end_of_deleted or -1) } end
log_start = tonumber(log_start)
local last_ms, last_sequence = parse_id((stream_ids.stream_end(records) or { "0-0" })[1])
local finish = 0
if last_ms > 0 or last_sequence > 0 then finish = last_ms * size + math.min(last_sequence, size - 1) + 1 end
start = math.max(start, log_start)
if stop < 0 or stop > finish then stop = finish end

local steps, step, taken_entries, taken_bytes, taken_records = {}, nil, 0, 0, 0
local position, from, is_full = start, id_of(start), false
while position < stop and taken_bytes < WALKED_BYTES_MAX and #steps < STEPS_MAX and not is_full do
  local entries = redis.call("XRANGE", records, from, "(" .. id_of(stop), "COUNT", PAGE)
  for _, entry in ipairs(entries) do
    local ms, sequence = parse_id(entry[1])
    local count, offset = sequence < size and 1 or 0, ms * size + math.min(sequence, size - 1)
    local bytes, timestamp = measure(entry[2], ms)
    local is_first = at_least_one and taken_records == 0
    is_full = not is_first and (taken_bytes + bytes > bytes_max or taken_records + count > records_max)
    if is_full or taken_bytes >= WALKED_BYTES_MAX then break end
    if not step or step[5] + bytes > grain_bytes or step[4] + count > grain_records then
      step = { offset, 0, 0, 0, 0, -1 }
      steps[#steps + 1] = step
    end
    position, from = math.min(offset + 1, stop), "(" .. entry[1]
    taken_entries, taken_bytes, taken_records = taken_entries + 1, taken_bytes + bytes, taken_records + count
    step[2], step[3], step[4], step[5] = position, step[3] + 1, step[4] + count, step[5] + bytes
    step[6] = math.max(step[6], timestamp)
  end
  if #entries < PAGE and not is_full and taken_bytes < WALKED_BYTES_MAX then position = stop end
end
return { ERROR.NONE, log_start, log_start, finish, epochs, position, steps }
