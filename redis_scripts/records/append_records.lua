#!lua
--[[ Append batches of records to a stream of format `record`: one entry for each record, with ids in order.

An id is <ms>-<sequence>. A batch has ids whose offsets, (ms << sequence bits) | sequence, follow each other without a
gap: its producer computes the offset of each record from the first one. It begins at Redis's time, or after the last
id if that is later: the clock went back, or the sequences of a millisecond are used up and continue in the next one.
Batches end in the lower half of a millisecond's sequences: the upper half is left to Redis programs that XADD with *.
A batch of an idempotent producer is judged by the producer's last five batches. A batch that is refused has no entry.

KEYS[1]  records    stream  <ms>-<sequence> -> key, value, header:<name>, timestamp
KEYS[2]  meta       hash    state, log_start, last_id
KEYS[3]  producers  hash    producer id -> its state
KEYS[4]  writers    hash    writer -> <counter> <ms> <reply>: its last call
ARGV[1]  sequence bits
ARGV[2]  writer
ARGV[3]  counter of the writer's calls: a repeat of the last call gets its reply again
ARGV[4]  1: LogAppendTime, so the entries' ids are the records' times
ARGV[5]  wake channel: gets "<end offset>:<writer>"
ARGV[6]  number of batches
ARGV[7]  and on: producer id (-1: none), epoch, base sequence, 1 to accept an unknown producer that does not begin at 0,
         number of records, for each record: timestamp, number of arguments, field, value, ...
Returns  {NONE, log start, verdicts}, for each batch `<verdict>:<first ms>:<first sequence>:<now>`; verdicts as in
         producers_table.Verdict: 0 appended, 1 duplicate, 2 fenced, 3 behind, 4 gap, 5 unknown gap, 6: the producer has
         a transaction open here; running twice appends once, but not after an error: a run that failed after its first
         XADD has appended some of its records. No key of another type has that effect: each is read before
Errors   UNKNOWN_TOPIC_OR_PARTITION  deleted
         FENCED_LEADER_EPOCH         a later call of the writer ran before: nothing is appended
]]
-- @include lib/errors
-- @include lib/now_ms
-- @include lib/record_producer
local records, meta, producers, writers = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local size, writer, counter, by_append_time = 2 ^ tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), ARGV[4] == "1"
local half, now = size / 2, now_ms()
local WRITERS_MAX, WRITER_MS = 64, 3600000

local function parse_id(id)
  local ms, sequence = string.match(id, "^(%d+)-(%d+)$")
  return tonumber(ms), tonumber(sequence)
end

local state, log_start, last_id = unpack(redis.call("HMGET", meta, "state", "log_start", "last_id"))
if state ~= "ready" then return { ERROR.UNKNOWN_TOPIC_OR_PARTITION } end

local function verdicts_of(text)
  local verdicts = {}
  for one in string.gmatch(text, "%S+") do verdicts[#verdicts + 1] = one end
  return { ERROR.NONE, log_start, verdicts }
end

local before = redis.call("HGET", writers, writer)
if before then
  local ran, _, reply = string.match(before, "^(%d+) (%d+) (.*)$")
  ran = tonumber(ran or -1)
  if ran == counter then return verdicts_of(reply) end
  if ran > counter then return { ERROR.FENCED_LEADER_EPOCH } end
end

local last_ms, last_sequence = parse_id(last_id or "0-0")

-- The first id for so many records.
local function next_id(count)
  local ms, sequence = now, 0
  if last_ms >= now then ms, sequence = last_ms, last_sequence + 1 end
  if sequence + count > half then
    if sequence > 0 then ms = ms + 1 end
    sequence = (count - 1) % size >= half and half or 0
  end
  return ms, sequence
end

local function add(ms, sequence, at)
  local timestamp, stop = ARGV[at], at + 1 + tonumber(ARGV[at + 1])
  local id = string.format("%.0f-%.0f", ms, sequence)
  if stop == at + 1 or (not by_append_time and tonumber(timestamp) ~= ms) then
    if by_append_time then timestamp = string.format("%.0f", ms) end
    return redis.pcall("XADD", records, id, "timestamp", timestamp, unpack(ARGV, at + 2, stop))
  end
  return redis.pcall("XADD", records, id, unpack(ARGV, at + 2, stop))
end

-- Others may have appended above the last id that this script wrote.
local function read_last_id()
  local info = redis.call("XINFO", "STREAM", records)
  for i = 1, #info, 2 do
    if info[i] == "last-generated-id" then last_ms, last_sequence = parse_id(info[i + 1]) end
  end
end

local function append(count, at)
  local ms, sequence = next_id(count)
  local first = add(ms, sequence, at)
  if first.err then
    read_last_id()
    ms, sequence = next_id(count)
    first = add(ms, sequence, at)
    if first.err then error(first.err) end
  end
  local first_ms, first_sequence = ms, sequence
  for _ = 2, count do
    at = at + 2 + tonumber(ARGV[at + 1])
    sequence = sequence + 1
    if sequence == size then
      ms, sequence = ms + 1, 0
    end
    local added = add(ms, sequence, at)
    if added.err then error(added.err) end
  end
  last_ms, last_sequence = ms, sequence
  return first_ms, first_sequence
end

-- Every key is read before the first XADD; `producers` is read below, unless the first batch has no producer id.
if ARGV[7] == "-1" and ARGV[6] ~= "1" then redis.call("HLEN", producers) end

local at, verdicts, appended = 7, {}, false
for i = 1, tonumber(ARGV[6]) do
  local producer_id, epoch, base = ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  local accept, count = ARGV[at + 3] == "1", tonumber(ARGV[at + 4])
  local last, known = (base + count - 1) % MASK, nil
  local verdict, ms, sequence = VERDICT.APPENDED, 0, 0
  at = at + 5
  if producer_id ~= "-1" then
    known = record_producer.read(redis.call("HGET", producers, producer_id))
    verdict, ms, sequence = record_producer.judge(known, epoch, base, last)
    if verdict == VERDICT.UNKNOWN_GAP and accept then verdict = VERDICT.APPENDED end
    if verdict == VERDICT.APPENDED and known and known.staged > 0 then verdict = VERDICT.OPEN_TRANSACTION end
  end
  if verdict == VERDICT.APPENDED then
    ms, sequence = append(count, at)
    appended = true
    if producer_id ~= "-1" then
      known = record_producer.note_batch(known, epoch, base, last, string.format("%.0f-%.0f", ms, sequence))
      record_producer.write(producers, producer_id, known, now)
    end
  end
  verdicts[i] = string.format("%d:%.0f:%.0f:%.0f", verdict, ms or 0, sequence or 0, now)
  for _ = 1, count do at = at + 2 + tonumber(ARGV[at + 1]) end
end

if appended then
  redis.call("HSET", meta, "last_id", string.format("%.0f-%.0f", last_ms, last_sequence))
end
redis.call("HSET", writers, writer, string.format("%.0f %.0f %s", counter, now, table.concat(verdicts, " ")))
if redis.call("HLEN", writers) > WRITERS_MAX then
  local all = redis.call("HGETALL", writers)
  for i = 1, #all, 2 do
    local ran_at = tonumber(string.match(all[i + 1], "^%d+ (%d+)"))
    if not ran_at or ran_at < now - WRITER_MS then redis.call("HDEL", writers, all[i]) end
  end
end
-- Without the right to publish, who waits notices the entries by their poll.
if appended then
  redis.pcall("PUBLISH", ARGV[5], string.format("%.0f:%s", last_ms * size + last_sequence + 1, writer))
end
return { ERROR.NONE, log_start, verdicts }
