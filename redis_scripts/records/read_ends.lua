#!lua flags=no-writes
--[[ Read where a stream of format `record` begins and ends.

KEYS[1]  records  stream
KEYS[2]  meta     hash    state, log_start
Returns  {NONE, log start, last generated id, id of the first entry or 0-0, entries, entries ever added};
         running twice changes nothing
Errors   UNKNOWN_TOPIC_OR_PARTITION  deleted
]]
-- @include lib/errors
-- @include lib/stream_ids
local records, meta = KEYS[1], KEYS[2]

local state, log_start = unpack(redis.call("HMGET", meta, "state", "log_start"))
if state ~= "ready" then return { ERROR.UNKNOWN_TOPIC_OR_PARTITION } end
local last_id, length, added, first = unpack(stream_end(records) or { "0-0", 0, 0, "0-0" })
return { ERROR.NONE, log_start, last_id, first, length, added }
