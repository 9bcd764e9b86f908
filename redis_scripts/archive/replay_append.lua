#!lua
--[[ Append batches that were read elsewhere to the end of this log: each once, as one entry (replay).

The entry is the same as from a broker's XADD, so brokers that append at the same time are refused, refresh, and append
behind it. Source offsets up to the last one written here are skipped. The batches have no producer: if the producer
snapshot is at the end of the log, it advances with the log, and so does the time index, as both remain exact.

KEYS[1]    log           stream
KEYS[2]    meta          hash    state, incarnation, epochs, bytes, batches, replid
KEYS[3]    times         zset    base offset, 19 digits -> largest timestamp up to and with that entry, ms
KEYS[4]    producers     hash    offset of the snapshot, max_timestamp, max_timestamp_base
KEYS[5]    replayed      hash    source -> the last source offset written here
KEYS[6]    translations  zset    `<source> <first, 19 digits> <last> <target's first> <target's last>`, all of score 0
ARGV[1]    source: `<job>|<topic>/<topic id>:<partition>`
ARGV[2]    failover epoch
ARGV[3]    master_replid of the server of that failover epoch
ARGV[4]    wake channel: gets `<end>:<writer>`
ARGV[5]    writer
ARGV[6]    first source offset of the whole replay
ARGV[7...] source offset after the previous batch, first and last of the batch, batch, ...: without gaps and producers;
           an empty batch means that the offsets up to its last have no records for this partition
Returns    {NONE, offset after the last batch, batches appended}; safe to run twice
Errors     UNKNOWN_TOPIC_OR_PARTITION  deleted, or never created
           FENCED_LEADER_EPOCH         another server, or a later failover epoch: refresh the epoch and retry
           OFFSET_OUT_OF_RANGE         and the last source offset written here: the batches do not continue after it
]]
-- @include lib/errors
-- @include lib/fence
-- @include lib/replid
local log, meta, times, producers, replayed, translations = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local source, failover_epoch, wake, writer = ARGV[1], ARGV[2], ARGV[4], ARGV[5]

local state, known = unpack(redis.call("HMGET", meta, "state", "incarnation"))
if state ~= "ready" or redis.call("EXISTS", log) == 0 then return { ERROR.UNKNOWN_TOPIC_OR_PARTITION } end
if replid() ~= ARGV[3] or tonumber(known or 0) > tonumber(failover_epoch) then return { ERROR.FENCED_LEADER_EPOCH } end

local last = tonumber(redis.call("HGET", replayed, source) or ARGV[6] - 1)
local written = last
local base = log_end(log)
local stop, bytes, batches, newest, runs = base, 0, 0, -1, {}
local command = { "XADD", log, "NOMKSTREAM", string.format("%.0f-1", base), "w", writer }

local function note(first, final, length) -- a run continues if both sides are contiguous
  local run = runs[#runs]
  if run and run.dense and first == run.final + 1 and final - first == length - 1 then
    run.final, run.stop = final, stop + length
  else
    runs[#runs + 1] = { first = first, final = final, start = stop, stop = stop + length, dense = final - first == length - 1 }
  end
end

for i = 7, #ARGV, 4 do
  local from, first, final, batch = tonumber(ARGV[i]), tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), ARGV[i + 3]
  if final > last then
    if from ~= last + 1 then return { ERROR.OFFSET_OUT_OF_RANGE, last } end
    if batch ~= "" then
      local delta, _, timestamp = struct.unpack(">i4i8i8", batch, BATCH.LAST_OFFSET_DELTA) -- then both timestamps
      note(first, final, delta + 1)
      command[#command + 1] = "b"
      command[#command + 1] = batch
      stop, bytes, batches, newest = stop + delta + 1, bytes + #batch, batches + 1, math.max(newest, timestamp)
    end
    last = final
  end
end
if batches > 0 then -- before the bookkeeping, because only this command may be refused
  fence(log, meta, failover_epoch, ARGV[3])
  redis.call(unpack(command))
end
if last > written then redis.call("HSET", replayed, source, string.format("%.0f", last)) end
if batches == 0 then return { ERROR.NONE, base, 0 } end

for _, run in ipairs(runs) do
  local member = string.format("%s %019.0f %.0f %.0f %.0f", source, run.first, run.final, run.start, run.stop - 1)
  redis.call("ZADD", translations, 0, member)
end

redis.call("HINCRBY", meta, "bytes", bytes)
redis.call("HINCRBY", meta, "batches", batches)
local saved, max, max_base = unpack(redis.call("HMGET", producers, "offset", "max_timestamp", "max_timestamp_base"))
if tonumber(saved or 0) == base then
  max, max_base = tonumber(max or -1), max_base or "-1"
  if newest > max then max, max_base = newest, string.format("%.0f", base) end
  local max_text = string.format("%.0f", max)
  redis.call("HSET", producers, "offset", string.format("%.0f", stop), "max_timestamp", max_text, "max_timestamp_base", max_base)
  redis.call("ZREMRANGEBYSCORE", times, max_text, max_text)
  redis.call("ZADD", times, max_text, string.format("%019.0f", base))
end
redis.call("PUBLISH", wake, string.format("%.0f:%s", stop, writer))
return { ERROR.NONE, stop, batches }
