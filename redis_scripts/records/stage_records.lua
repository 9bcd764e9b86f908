#!lua
--[[ Stage batches of open transactions beside a stream of format `record`, until records/end_transaction appends them.

A batch is judged by its producer's last batches, as in records/append_records. The first one of a transaction is staged
only if the coordinator has confirmed it, and no transaction of the producer has ended here since: the caller reads the
producer's state, asks the coordinator, then runs this with that state. Where a state was deleted, what it had staged
shows that: a batch behind it is refused, as a gap is, and a first one takes its place.

KEYS[1]  meta       hash  state, log_start
KEYS[2]  producers  hash  producer id -> its state
KEYS[3]  staged     hash  <producer id>:<number of the batch> -> its records
ARGV[1]  limit of staged records of a producer
ARGV[2]  limit of staged bytes of a producer
ARGV[3]  number of batches
ARGV[4]  and on: producer id, epoch, base sequence, 1 to accept an unknown producer that does not begin at 0, the state
         `<epoch>:<ended ms>` before which the coordinator confirmed, or "", bytes, number of records, for each record:
         timestamp, number of arguments, field, value, ...
Returns  {NONE, log start, verdicts}, for each batch `<verdict>:<epoch>:<ended ms>:<now>`, the state before it;
         verdicts as in records/append_records, and 7: ask the coordinator, 8: beyond a limit; running twice stages once
Errors   UNKNOWN_TOPIC_OR_PARTITION  deleted
]]
-- @include lib/errors
-- @include lib/now_ms
-- @include lib/record_producer
local meta, producers, staged = KEYS[1], KEYS[2], KEYS[3]
local records_max, bytes_max, now = tonumber(ARGV[1]), tonumber(ARGV[2]), now_ms()

local state, log_start = unpack(redis.call("HMGET", meta, "state", "log_start"))
if state ~= "ready" then return { ERROR.UNKNOWN_TOPIC_OR_PARTITION } end

-- What an older epoch has left is of a transaction whose end was lost with Redis: its producer is fenced.
local function drop_older(producer_id, producer, epoch)
  if producer and producer.epoch == epoch then return end
  for i = 1, producer and producer.staged or record_producer.staged_without_state(staged, producer_id) do
    redis.call("HDEL", staged, producer_id .. ":" .. i)
  end
  if not producer then return end
  producer.staged, producer.records, producer.bytes = 0, 0, 0
end

local at, verdicts = 4, {}
for i = 1, tonumber(ARGV[3]) do
  local producer_id, epoch, base, accept = ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), ARGV[at + 3] == "1"
  local confirmed, bytes, count = ARGV[at + 4], tonumber(ARGV[at + 5]), tonumber(ARGV[at + 6])
  local last, first = (base + count - 1) % MASK, at + 7
  at = first
  for _ = 1, count do at = at + 2 + tonumber(ARGV[at + 1]) end
  local producer = record_producer.read(redis.call("HGET", producers, producer_id))
  local before = string.format("%.0f:%.0f", producer and producer.epoch or -1, producer and producer.ended_ms or -1)
  local is_open = producer and producer.staged > 0 and producer.epoch == epoch
  local verdict = record_producer.judge(producer, epoch, base, last)
  if verdict == VERDICT.UNKNOWN_GAP and accept then
    verdict = record_producer.staged_without_state(staged, producer_id) == 0 and VERDICT.APPENDED or VERDICT.GAP
  end
  if verdict == VERDICT.APPENDED and not is_open and confirmed ~= before then verdict = VERDICT.UNCONFIRMED end
  if verdict == VERDICT.APPENDED then
    drop_older(producer_id, producer, epoch)
    if (producer and producer.records or 0) + count > records_max or (producer and producer.bytes or 0) + bytes > bytes_max then
      verdict = VERDICT.TOO_LARGE
    else
      local rows = {}
      for j = first, at - 1 do rows[#rows + 1] = ARGV[j] end
      producer = record_producer.note_batch(producer, epoch, base, last, "0-0")
      producer.staged, producer.records = producer.staged + 1, producer.records + count
      producer.bytes = producer.bytes + bytes
      redis.call("HSET", staged, producer_id .. ":" .. producer.staged, cmsgpack.pack(rows))
      record_producer.write(producers, producer_id, producer, now)
    end
  end
  verdicts[i] = string.format("%d:%s:%.0f", verdict, before, now)
end
return { ERROR.NONE, log_start, verdicts }
