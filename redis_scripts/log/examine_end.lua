#!lua flags=no-writes
--[[ Read a log's end and its stream's last id, to find out whether the log accepts appends, and what it lost last.

KEYS[1]  log   stream
KEYS[2]  meta  hash    state, truncated
Returns  {NONE, log end, last id, truncated or "", ms now}; running twice changes nothing
Errors   UNKNOWN_TOPIC_OR_PARTITION  deleted, or never created
         KAFKA_STORAGE_ERROR         the stream is lost
]]
-- @include lib/errors
-- @include lib/log_end
-- @include lib/last_id
-- @include lib/now_ms
local log, meta = KEYS[1], KEYS[2]

local state, truncated = unpack(redis.call("HMGET", meta, "state", "truncated"))
if state ~= "ready" then return { ERROR.UNKNOWN_TOPIC_OR_PARTITION } end
if redis.call("EXISTS", log) == 0 then return { ERROR.KAFKA_STORAGE_ERROR } end
return { ERROR.NONE, log_end(log), last_id(log), truncated or "", now_ms() }
