#!lua flags=no-writes
--[[ Read where a stream of format `record` begins and ends.

KEYS[1]  records  stream
KEYS[2]  meta     hash    state, log_start, last_id
Returns  {NONE, log start, last id of the stream or, where that was deleted, of the last append,
         id of the first entry or 0-0, entries, entries ever added}; running twice changes nothing
Errors   UNKNOWN_TOPIC_OR_PARTITION  deleted
]]
-- @include lib/errors
-- @include lib/stream_ids
local records, meta = KEYS[1], KEYS[2]

local state, log_start, appended = unpack(redis.call("HMGET", meta, "state", "log_start", "last_id"))
if state ~= "ready" then return { ERROR.UNKNOWN_TOPIC_OR_PARTITION } end
local last_id, length, added, first = unpack(stream_ids.stream_end(records) or { "0-0", 0, 0, "0-0" })
return { ERROR.NONE, log_start, stream_ids.higher_id(last_id, appended), first, length, added }
