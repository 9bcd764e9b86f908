#!lua flags=no-writes
--[[ Read what a backup has of a partition's log: where it begins and ends, its leader epochs, the index of its archive.

KEYS[1]  log      stream
KEYS[2]  meta     hash    state, log_start, epochs, incarnation, format
KEYS[3]  archive  hash    start, end
KEYS[4]  segments zset    JSON of each segment -> its last offset
Returns  {NONE, log start, log end (format record: the stream's last id), leader epochs, failover epoch, {segment, last
         offset, ...}, then start and end of the archive, if there is one}; running twice changes nothing
Errors   UNKNOWN_TOPIC_OR_PARTITION  deleted, or never created
         KAFKA_STORAGE_ERROR         the stream is lost
]]
-- @include lib/errors
-- @include lib/log_end
-- @include lib/last_id
local log, meta, archive, segments = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

local state, log_start, epochs, failover_epoch, format =
  unpack(redis.call("HMGET", meta, "state", "log_start", "epochs", "incarnation", "format"))
if state ~= "ready" then return { ERROR.UNKNOWN_TOPIC_OR_PARTITION } end
if redis.call("EXISTS", log) == 0 then return { ERROR.KAFKA_STORAGE_ERROR } end
local stop = format == "record" and last_id(log) or string.format("%.0f", log_end(log))
local first, last = unpack(redis.call("HMGET", archive, "start", "end"))
local index = redis.call("ZRANGE", segments, 0, -1, "WITHSCORES")
return { ERROR.NONE, log_start, stop, epochs, failover_epoch or "0", index, first, last }
