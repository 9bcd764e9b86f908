#!lua flags=allow-oom
--[[ End a producer's transaction in a stream of format `record`: append its staged records, or drop them; atomically.

What an ended transaction was is remembered by the time of its decision, so it ends once whoever runs this how often. Also
when Redis is full: the records are in it already. Every batch is read before the first XADD. A commit completes without
batches that somebody deleted, and counts them; if the producer's state was deleted, what is staged shows what it was.

KEYS[1]  records    stream  <ms>-<sequence> -> key, value, header:<name>, timestamp
KEYS[2]  meta       hash    state, last_id
KEYS[3]  producers  hash    producer id -> its state
KEYS[4]  staged     hash    <producer id>:<number of the batch> -> its records
ARGV[1]  sequence bits
ARGV[2]  1: LogAppendTime, so the entries' ids are the records' times
ARGV[3]  wake channel: gets "<end offset>:<writer>"
ARGV[4]  writer
ARGV[5]  producer id
ARGV[6]  epoch of the marker
ARGV[7]  when the transaction was decided, ms; -1: an administrator ends whatever is open
ARGV[8]  1: commit, 0: abort
ARGV[9]  "", or when the transaction before the one to end was decided, ms; -1: there was none; -2: none is open
Returns  {NONE, records appended, staged records that a commit did not find}; running twice appends once
Errors   UNKNOWN_TOPIC_OR_PARTITION  deleted
         INVALID_PRODUCER_EPOCH      the producer has a later epoch here
         INVALID_TXN_STATE           what is staged is of another transaction than the one behind ARGV[9]
]]
-- @include lib/errors
-- @include lib/now_ms
-- @include lib/stream_ids
-- @include lib/record_producer
local records, meta, producers, staged = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local size, by_append_time, producer_id = 2 ^ tonumber(ARGV[1]), ARGV[2] == "1", ARGV[5]
local epoch, ended_ms, is_commit, now = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8] == "1", now_ms()
local behind_ms = tonumber(ARGV[9])

local state, last_id = unpack(redis.call("HMGET", meta, "state", "last_id"))
if state ~= "ready" then return { ERROR.UNKNOWN_TOPIC_OR_PARTITION } end
local producer = record_producer.read(redis.call("HGET", producers, producer_id))
if not producer then
  local found = record_producer.staged_without_state(staged, producer_id)
  producer = { epoch = epoch, batches = "", ended_ms = -1, staged = found, records = 0, bytes = 0 }
  behind_ms = nil
end
if ended_ms >= 0 and ended_ms <= producer.ended_ms then return { ERROR.NONE, 0, 0 } end
if epoch < producer.epoch then return { ERROR.INVALID_PRODUCER_EPOCH } end
if behind_ms and producer.staged > 0 and producer.ended_ms ~= behind_ms then return { ERROR.INVALID_TXN_STATE } end

local found = stream_ids.stream_end(records)
if not last_id or (found and stream_ids.is_above(found[1], last_id)) then last_id = found and found[1] or "0-0" end
local ms, sequence = string.match(last_id, "^(%d+)-(%d+)$")
ms, sequence = tonumber(ms), tonumber(sequence)

-- The first id after the last one: Redis's time or later, in the lower half of a millisecond's sequences.
local function next_id()
  if ms < now then
    ms, sequence = now, 0
  elseif sequence + 1 < size / 2 then
    sequence = sequence + 1
  else
    ms, sequence = ms + 1, 0
  end
end

local function append(rows)
  local at, count = 1, 0
  while rows[at] do
    local timestamp, stop = rows[at], at + 1 + tonumber(rows[at + 1])
    next_id()
    local id = string.format("%.0f-%.0f", ms, sequence)
    if stop == at + 1 or (not by_append_time and tonumber(timestamp) ~= ms) then
      if by_append_time then timestamp = string.format("%.0f", ms) end
      redis.call("XADD", records, id, "timestamp", timestamp, unpack(rows, at + 2, stop))
    else
      redis.call("XADD", records, id, unpack(rows, at + 2, stop))
    end
    at, count = stop + 1, count + 1
  end
  return count
end

local batches, appended, lost = {}, 0, 0
for i = 1, is_commit and producer.staged or 0 do
  local packed = redis.call("HGET", staged, producer_id .. ":" .. i)
  if packed then batches[#batches + 1] = cmsgpack.unpack(packed) end
end
for _, rows in ipairs(batches) do appended = appended + append(rows) end
if is_commit and #batches < producer.staged then lost = math.max(producer.records - appended, 0) end
for i = 1, producer.staged do redis.call("HDEL", staged, producer_id .. ":" .. i) end
if producer.epoch ~= epoch then producer.batches = "" end
producer.epoch, producer.ended_ms = epoch, math.max(ended_ms, producer.ended_ms)
producer.staged, producer.records, producer.bytes = 0, 0, 0
record_producer.write(producers, producer_id, producer, now)
if appended > 0 then
  redis.call("HSET", meta, "last_id", string.format("%.0f-%.0f", ms, sequence))
  redis.pcall("PUBLISH", ARGV[3], string.format("%.0f:%s", ms * size + sequence + 1, ARGV[4]))
end
return { ERROR.NONE, appended, lost }
