#!lua flags=allow-oom
--[[ Replace a log by a stream with its good entries: appends continue at the end of the last of them (repair).

The caller has filled the new stream with everything up to an id. Leader epochs, starts and a producer snapshot beyond
the new end are lowered to it; the newest leader epoch remains, so that clients never observe a lower one. Each Redis
group of the log keeps its position in the new stream, limited to the end.

KEYS[1]  log        stream  replaced
KEYS[2]  repaired   stream  becomes the log
KEYS[3]  meta       hash    state, incarnation, log_version, log_start, local_start, epochs, bytes,
                           high_watermark
KEYS[4]  producers  hash    offset of the snapshot
ARGV[1]  failover epoch when the new stream was begun
ARGV[2]  master_replid then: a server with another history may have lost a part of the new stream
ARGV[3]  log_version then
ARGV[4]  entries of the new stream: another number means that another process removed or filled it too
ARGV[5]  id of the log's last entry that the caller read
ARGV[6]  bytes of the new stream's batches
ARGV[7]  wake channel: gets "repaired"
Returns  {NONE, 1, end} if the new stream is the log, {NONE, 0, 0} if the log has grown: copy the rest and retry;
         running twice: the second run is refused
Errors   UNKNOWN_TOPIC_OR_PARTITION  deleted, or there is no new stream
         FENCED_LEADER_EPOCH         another server, another failover epoch, or other streams than then
]]
-- @include lib/errors
-- @include lib/log_end
local log, repaired, meta, producers = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

local state, failover_epoch, version, log_start, local_start, epochs, proved = unpack(
  redis.call("HMGET", meta, "state", "incarnation", "log_version", "log_start", "local_start", "epochs", "high_watermark")
)
if state ~= "ready" or redis.call("EXISTS", log, repaired) < 2 then return { ERROR.UNKNOWN_TOPIC_OR_PARTITION } end
local replid = string.match(redis.call("INFO", "replication"), "master_replid:(%x+)")
local is_callers = redis.call("XLEN", repaired) == tonumber(ARGV[4])
if (failover_epoch or "0") ~= ARGV[1] or replid ~= ARGV[2] or (version or "0") ~= ARGV[3] or not is_callers then
  return { ERROR.FENCED_LEADER_EPOCH }
end
if #redis.call("XRANGE", log, "(" .. ARGV[5], "+", "COUNT", 1) > 0 then return { ERROR.NONE, 0, 0 } end

local stop = log_end(repaired)
if stop == 0 then stop = math.min(tonumber(log_start), tonumber(redis.call("HGET", producers, "offset") or 0)) end

local function at_most(offset) return string.format("%.0f", math.min(tonumber(offset or 0), stop)) end

local kept, newest, newest_start = {}, "0", "0"
for epoch, start in string.gmatch(epochs, "(%d+):(%d+)") do newest, newest_start = epoch, at_most(start) end
for epoch, start in string.gmatch(epochs, "(%d+):(%d+)") do
  if epoch ~= newest and tonumber(start) < tonumber(newest_start) then kept[#kept + 1] = epoch .. ":" .. start end
end
kept[#kept + 1] = newest .. ":" .. newest_start

for _, group in ipairs(redis.call("XINFO", "GROUPS", log)) do
  local position = group[8]
  if tonumber(string.match(position, "^%d+")) >= stop then position = string.format("%.0f-0", stop) end
  redis.call("XGROUP", "CREATE", repaired, group[2], position)
end
redis.call("UNLINK", log)
redis.call("RENAME", repaired, log)
redis.call("PERSIST", log)
redis.call("HINCRBY", meta, "log_version", 1)
redis.call("HSET", meta, "epochs", table.concat(kept, " "), "bytes", ARGV[6], "log_start", at_most(log_start))
if local_start then redis.call("HSET", meta, "local_start", at_most(local_start)) end
if proved then redis.call("HSET", meta, "high_watermark", at_most(proved)) end
if tonumber(redis.call("HGET", producers, "offset") or 0) > stop then redis.call("UNLINK", producers) end
redis.call("PUBLISH", ARGV[7], "repaired")
return { ERROR.NONE, 1, stop }
