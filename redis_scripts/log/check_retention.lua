#!lua flags=no-writes
--[[ Read what decides whether a log may have records to delete, so that a broker loads only such logs.

KEYS[1]  log   stream
KEYS[2]  meta  hash    state, log_start, local_start, bytes, recount
Returns  {NONE, log start, local start, log end, bytes, 1 if the bytes are an estimate, largest timestamp of the first
         entry, ms, or -1, 1 if the stream ends with an entry that a broker appended}; running twice changes nothing
Errors   UNKNOWN_TOPIC_OR_PARTITION  deleted, or never created
         KAFKA_STORAGE_ERROR         the stream is lost
]]
-- @include lib/errors
-- @include lib/last_entry
-- @include lib/last_id
-- @include lib/batch_times
local log, meta = KEYS[1], KEYS[2]

local state, log_start, local_start, bytes, recount =
  unpack(redis.call("HMGET", meta, "state", "log_start", "local_start", "bytes", "recount"))
if state ~= "ready" then return { ERROR.UNKNOWN_TOPIC_OR_PARTITION } end
if redis.call("EXISTS", log) == 0 then return { ERROR.KAFKA_STORAGE_ERROR } end
local_start = math.max(tonumber(log_start), tonumber(local_start or 0))

local last, log_end, stray = last_entry(log, "+")
local last_assigned = last_id(log)
local ends_well = not stray and (last_assigned == (last and last[1] or "0-0") or last_assigned == "0-0")
local timestamp = -1
local first = local_start < (log_end or 0) and last_entry(log, string.format("%.0f-1", local_start))
for i = 1, first and #first[2] or 0, 2 do
  if first[2][i] == "b" then timestamp = math.max(timestamp, batch_times.largest(first[2][i + 1])) end
end
return {
  ERROR.NONE, tonumber(log_start), local_start, log_end or 0, tonumber(bytes or 0), recount and 1 or 0, timestamp,
  ends_well and 1 or 0,
}
