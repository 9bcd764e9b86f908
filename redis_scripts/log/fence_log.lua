#!lua flags=allow-oom
--[[ Bind a log to a failover epoch of the server before its state is loaded.

If the log is bound to an earlier failover epoch of another server, its end may have been lost: a new leader epoch
starts at the remaining end, before any append under the new failover epoch. The leader epoch is the failover epoch less
1, so that every broker can report the leader epoch of any partition without reading its log.

KEYS[1]  log   stream
KEYS[2]  meta  hash    state, incarnation, epochs, log_start, local_start, log_version, bytes, high_watermark, replid,
                       cleaned_before
KEYS[3]  archive  hash  start, end: for a meta that is rebuilt
ARGV[1]  failover epoch
Returns  {NONE, log_start, epochs, bytes, number of entries, local_start or nil, log_version or nil, the log's failover
         epoch, which is not lower, high_watermark as stored or nil, cleaned_before or nil, the stream's last id, 1
         if the meta was lost and is rebuilt}; safe to run twice
Errors   UNKNOWN_TOPIC_OR_PARTITION  deleted, or never created
         KAFKA_STORAGE_ERROR         the stream is lost
]]
-- @include lib/errors
-- @include lib/fence
-- @include lib/last_id
-- @include lib/rebuild_meta
-- @include lib/replid
local log, meta, rebuilt = KEYS[1], KEYS[2], 0

local state, has_log = redis.call("HGET", meta, "state"), redis.call("EXISTS", log) == 1
if not state and has_log then
  rebuild_meta(log, meta, KEYS[3])
  rebuilt = 1
elseif state ~= "ready" then
  return { ERROR.UNKNOWN_TOPIC_OR_PARTITION }
elseif not has_log then
  return { ERROR.KAFKA_STORAGE_ERROR }
end

local epochs = fence(log, meta, ARGV[1], replid())
local log_start, bytes, local_start, version, failover_epoch, proved, cleaned_before = unpack(redis.call("HMGET", meta,
  "log_start", "bytes", "local_start", "log_version", "incarnation", "high_watermark", "cleaned_before"))
local entries = redis.call("XLEN", log)
return {
  ERROR.NONE, log_start, epochs, bytes, entries, local_start, version, failover_epoch, proved, cleaned_before,
  last_id(log), rebuilt,
}
