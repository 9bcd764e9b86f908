#!lua
--[[ Replace a log by a stream that begins earlier and contains archived records again (restore).

The caller has filled the new stream from the archive, then with the log's entries. This script copies entries appended
since then, if they are few. Each Redis group of the log keeps its position in the new stream.

KEYS[1]  log       stream  replaced
KEYS[2]  restored  stream  becomes the log
KEYS[3]  meta      hash    state, incarnation, log_version, log_start, local_start, bytes;
                           cleaned, cleaned_before, cleaned_bytes: removed, so compaction reads the log from its start
ARGV[1]  failover epoch when the new stream was begun
ARGV[2]  master_replid then: a server with another history may have lost a part of the new stream
ARGV[3]  log_version then
ARGV[4]  the new local start offset
ARGV[5]  bytes by which the new stream is larger
ARGV[6]  limit of entries copied here
ARGV[7]  wake channel: gets "restored"
ARGV[8]  the first visible offset in Redis when the new stream was planned
ARGV[9]  entries of the new stream: another number means that another restore removed or filled it too
Returns  {NONE, 1} if the new stream is the log, {NONE, 0} if more entries than ARGV[6] are missing: copy them and
         retry; running twice: the second run is refused
Errors   UNKNOWN_TOPIC_OR_PARTITION  deleted, or there is no new stream
         FENCED_LEADER_EPOCH         another server, another failover epoch, or other streams than then
         OFFSET_OUT_OF_RANGE         trimmed since then: the new stream may lack entries trimmed before they were copied
]]
-- @include lib/errors
-- @include lib/replace_log
-- @include lib/replid
local log, restored, meta = KEYS[1], KEYS[2], KEYS[3]
local start = tonumber(ARGV[4])

local state, failover_epoch, version, log_start, local_start =
  unpack(redis.call("HMGET", meta, "state", "incarnation", "log_version", "log_start", "local_start"))
if state ~= "ready" or redis.call("EXISTS", log, restored) < 2 then return { ERROR.UNKNOWN_TOPIC_OR_PARTITION } end
local is_callers = redis.call("XLEN", restored) == tonumber(ARGV[9])
if failover_epoch ~= ARGV[1] or replid() ~= ARGV[2] or (version or "0") ~= ARGV[3] or not is_callers then
  return { ERROR.FENCED_LEADER_EPOCH }
end
if math.max(tonumber(log_start), tonumber(local_start or 0)) > tonumber(ARGV[8]) then return { ERROR.OFFSET_OUT_OF_RANGE } end

local last = redis.call("XREVRANGE", restored, "+", "-", "COUNT", 1)[1][1]
local missing = replace_log.entries_after(log, last, tonumber(ARGV[6]))
if not missing then return { ERROR.NONE, 0 } end

replace_log.replace(log, restored, meta, missing)
redis.call("HINCRBY", meta, "bytes", ARGV[5])
redis.call("HSET", meta, "local_start", ARGV[4], "log_start", string.format("%.0f", math.min(start, tonumber(log_start))))
redis.call("HDEL", meta, "cleaned", "cleaned_before", "cleaned_bytes")
redis.call("PUBLISH", ARGV[7], "restored")
return { ERROR.NONE, 1 }
