#!lua flags=allow-oom
--[[ Tie a log to an incarnation of the server before a view of it is loaded.

Where the log knows an earlier incarnation its end may have been lost: a new leader epoch starts at what is
left, and no append of the new incarnation comes before that. The epoch is the incarnation less 1, so that
every broker can tell clients the epoch of any partition without a look at its log.

KEYS[1]  log   stream
KEYS[2]  meta  hash    state, incarnation, epochs, log_start, local_start, log_version, bytes, high_watermark
ARGV[1]  incarnation
Returns  {NONE, log_start, epochs, bytes, number of entries, local_start or nil, log_version or nil, the incarnation that
         the log is tied to, which is not less, high_watermark as stored or nil, the stream's last id}; safe to run twice
Errors   UNKNOWN_TOPIC_OR_PARTITION  deleted, or never made
]]
-- @include lib/errors
-- @include lib/fence
-- @include lib/last_id
local log, meta = KEYS[1], KEYS[2]

if redis.call("HGET", meta, "state") ~= "ready" or redis.call("EXISTS", log) == 0 then
  return { ERROR.UNKNOWN_TOPIC_OR_PARTITION }
end

local epochs = fence(log, meta, ARGV[1])
local log_start, bytes, local_start, version, failover_epoch, proved =
  unpack(redis.call("HMGET", meta, "log_start", "bytes", "local_start", "log_version", "incarnation", "high_watermark"))
local entries = redis.call("XLEN", log)
return { ERROR.NONE, log_start, epochs, bytes, entries, local_start, version, failover_epoch, proved, last_id(log) }
