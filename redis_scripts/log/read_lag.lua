#!lua flags=no-writes
--[[ Read a log's start and end, and the times of its last records and of those at some offsets.

The time at an offset is that of the batch that contains it. If there is none, below the local start or where compaction
left a gap or a batch without records, it is that of the next batch in Redis.

KEYS[1]  log   stream  <base offset>-1 -> record batches
KEYS[2]  meta  hash    state, log_start, bytes
ARGV[1]  and on: offsets
Returns  {NONE, log start, log end, bytes, now, ms of the last batch, ms at each offset}, -1 for none;
         running twice changes nothing
Errors   UNKNOWN_TOPIC_OR_PARTITION  deleted
]]
-- @include lib/errors
-- @include lib/now_ms
-- @include lib/last_entry
-- @include lib/batch_times
local log, meta = KEYS[1], KEYS[2]

local state, log_start, bytes = unpack(redis.call("HMGET", meta, "state", "log_start", "bytes"))
if state ~= "ready" then return { ERROR.UNKNOWN_TOPIC_OR_PARTITION } end
local last, log_end = last_entry(log, "+")
log_end = log_end or 0
local head_time = last and batch_times.largest(last[2][#last[2]]) or -1
local reply = { ERROR.NONE, tonumber(log_start), log_end, tonumber(bytes or 0), now_ms(), head_time }

-- The first batch of an entry that ends behind an offset: batches are contiguous, gaps are only between entries.
local function holding(entry, offset)
  local base, fields = tonumber(string.match(entry[1], "^%d+")), entry[2]
  for i = 1, #fields, 2 do
    if fields[i] == "b" then
      local a, b, c, d = string.byte(fields[i + 1], BATCH.LAST_OFFSET_DELTA, BATCH.LAST_OFFSET_DELTA + 3)
      base = base + ((a * 256 + b) * 256 + c) * 256 + d + 1
      if offset < base or i + 1 == #fields then return fields[i + 1] end
    end
  end
end

local function time_of(offset)
  if offset >= log_end then return -1 end
  local entry, stop = last, log_end
  if tonumber(string.match(last[1], "^%d+")) > offset then
    entry, stop = last_entry(log, string.format("%.0f-1", offset))
  end
  local time = stop and stop > offset and batch_times.first(holding(entry, offset)) or -1
  if time >= 0 then return time end
  entry = redis.call("XRANGE", log, string.format("(%.0f-1", offset), "+", "COUNT", 1)[1]
  return entry and entry_end(entry) and batch_times.first(holding(entry, offset)) or -1
end

for i, offset in ipairs(ARGV) do reply[6 + i] = time_of(math.max(tonumber(offset), tonumber(log_start))) end
return reply
