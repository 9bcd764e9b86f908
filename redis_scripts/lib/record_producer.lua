-- read(text), write(key, id, producer, now): the state of a producer in format record. Its text is `<epoch> <ms>
-- <base sequence>:<last sequence>:<first id>,...`, the batches with an id of 0-0 while they are staged; a producer of
-- transactions has ` <ended ms> <staged batches> <staged records> <staged bytes>` behind it. nil for an unknown producer.
-- judge(producer, epoch, base, last): the verdict on a batch by Kafka's rules (KIP-98), as producers_table.judge has
-- them, and the first id of a duplicate. note_batch(producer, epoch, base, last, first_id): the state with the batch.
-- staged_without_state(staged, id): how many batches are staged of a producer whose state was deleted.
-- Reads staged, writes producers.
local record_producer = {}
local MASK, AHEAD_MAX, KEPT = 2 ^ 31, 2 ^ 30, 5

function record_producer.read(text)
  local epoch, batches, rest = string.match(text or "", "^(%d+) %d+ (%S*)(.*)$")
  if not epoch then return nil end
  local ended_ms, staged, records, bytes = string.match(rest, "^ (%-?%d+) (%d+) (%d+) (%d+)$")
  return { epoch = tonumber(epoch), batches = batches, ended_ms = tonumber(ended_ms or -1), staged = tonumber(staged or 0),
    records = tonumber(records or 0), bytes = tonumber(bytes or 0) }
end

function record_producer.write(key, producer_id, producer, now)
  local text = string.format("%.0f %.0f %s", producer.epoch, now, producer.batches)
  if producer.ended_ms >= 0 or producer.staged > 0 then
    text = string.format("%s %.0f %.0f %.0f %.0f", text, producer.ended_ms, producer.staged, producer.records, producer.bytes)
  end
  redis.call("HSET", key, producer_id, text)
end

function record_producer.judge(producer, epoch, base, last)
  if not producer then return base == 0 and VERDICT.APPENDED or VERDICT.UNKNOWN_GAP end
  if epoch < producer.epoch then return VERDICT.FENCED end
  if epoch > producer.epoch then return base == 0 and VERDICT.APPENDED or VERDICT.GAP end
  local newest
  for first, final, ms, sequence in string.gmatch(producer.batches, "(%d+):(%d+):(%d+)-(%d+)") do
    if tonumber(first) == base and tonumber(final) == last then return VERDICT.DUPLICATE, ms, sequence end
    newest = tonumber(final)
  end
  if not newest then return base == 0 and VERDICT.APPENDED or VERDICT.GAP end -- a marker only: the last sequence is -1
  local ahead = (base - newest - 1) % MASK
  if ahead == 0 then return VERDICT.APPENDED end
  return ahead < AHEAD_MAX and VERDICT.GAP or VERDICT.BEHIND
end

function record_producer.note_batch(producer, epoch, base, last, first_id)
  local kept = {}
  if not producer then producer = { epoch = epoch, batches = "", ended_ms = -1, staged = 0, records = 0, bytes = 0 } end
  if producer.epoch == epoch then
    for one in string.gmatch(producer.batches, "[^,]+") do kept[#kept + 1] = one end
  end
  while #kept >= KEPT do table.remove(kept, 1) end
  kept[#kept + 1] = string.format("%.0f:%.0f:%s", base, last, first_id)
  producer.epoch, producer.batches = epoch, table.concat(kept, ",")
  return producer
end

function record_producer.staged_without_state(staged, producer_id)
  local found = 0
  while redis.call("HEXISTS", staged, producer_id .. ":" .. found + 1) == 1 do found = found + 1 end
  return found
end
