#!lua flags=allow-oom
--[[ Replace a log by a stream with its good entries: appends continue at the end of the last of them (repair).

A stream without any entry cannot name its end: the log was emptied, or its stream is lost. Then it continues a million
above every offset that Redis still knows, so that no offset is used for two records, and readers below get an error.

The caller has filled the new stream with everything up to an id. Leader epochs and starts beyond the new end are
lowered to it; the newest leader epoch remains, so that clients never observe a lower one. A producer snapshot and times
of entries beyond it are removed, but for transactions aborted below the local start: only the snapshot has them. Each
Redis group of the log keeps its position in the new stream, limited to the end.

KEYS[1]  log        stream  replaced
KEYS[2]  repaired   stream  becomes the log
KEYS[3]  meta       hash    state, incarnation, log_version, log_start, local_start, epochs, bytes,
                           high_watermark; cleaned, cleaned_bytes: removed, as entries may be missing
KEYS[4]  producers  hash    offset of the snapshot; aborted
KEYS[5]  times      zset    base offset, 19 digits -> largest timestamp up to it
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
-- @include lib/last_id
-- @include lib/replace_log
-- @include lib/replid
local log, repaired, meta, producers, times = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local LEAP, OFFSET_MAX = 1000000, 1e12 -- above it is no offset, but the clock in an entry's id

local state, failover_epoch, version, log_start, local_start, epochs, proved = unpack(
  redis.call("HMGET", meta, "state", "incarnation", "log_version", "log_start", "local_start", "epochs", "high_watermark")
)
if state ~= "ready" or redis.call("EXISTS", repaired) == 0 then return { ERROR.UNKNOWN_TOPIC_OR_PARTITION } end
local is_callers = redis.call("XLEN", repaired) == tonumber(ARGV[4])
if (failover_epoch or "0") ~= ARGV[1] or replid() ~= ARGV[2] or (version or "0") ~= ARGV[3] or not is_callers then
  return { ERROR.FENCED_LEADER_EPOCH }
end
if #redis.call("XRANGE", log, "(" .. ARGV[5], "+", "COUNT", 1) > 0 then return { ERROR.NONE, 0, 0 } end

-- The highest offset that Redis still knows of a log without entries; 0 if it never had any.
local function last_known()
  local snapshot, newest = redis.call("HGET", producers, "offset"), redis.call("ZRANGE", times, -1, -1)[1]
  local last, highest = string.match(last_id(log), "^(%d+)%-1$"), 0
  for _, offset in ipairs({ log_start, local_start or 0, proved or 0, snapshot or 0, newest or 0, last or 0 }) do
    offset = tonumber(offset)
    if offset < OFFSET_MAX then highest = math.max(highest, offset) end
  end
  return highest
end

local stop, emptied = log_end(repaired), false
if stop == 0 then
  stop = last_known()
  emptied = stop > 0 or redis.call("EXISTS", log) == 0
  if emptied then stop = stop + LEAP end
end

local function at_most(offset) return string.format("%.0f", math.min(tonumber(offset or 0), stop)) end

-- The aborted transactions, as text, whose markers are below an offset.
local function aborted_below(offset)
  local found = {}
  for one, marker in string.gmatch(redis.call("HGET", producers, "aborted") or "", "(%d+:%d+:(%d+):%d+)") do
    if tonumber(marker) < offset then found[#found + 1] = one end
  end
  return table.concat(found, ",")
end

local kept, newest, newest_start = {}, "0", "0"
for epoch, start in string.gmatch(epochs, "(%d+):(%d+)") do newest, newest_start = epoch, at_most(start) end
for epoch, start in string.gmatch(epochs, "(%d+):(%d+)") do
  if epoch ~= newest and tonumber(start) < tonumber(newest_start) then kept[#kept + 1] = epoch .. ":" .. start end
end
kept[#kept + 1] = newest .. ":" .. newest_start

replace_log.replace(log, repaired, meta, {}, function(position)
  return tonumber(string.match(position, "^%d+")) >= stop and string.format("%.0f-0", stop) or position
end)
redis.call("HSET", meta, "epochs", table.concat(kept, " "), "bytes", ARGV[6], "log_start", at_most(log_start))
if local_start then redis.call("HSET", meta, "local_start", at_most(local_start)) end
if proved then redis.call("HSET", meta, "high_watermark", at_most(proved)) end
if tonumber(redis.call("HGET", producers, "offset") or 0) > stop then
  local archived = aborted_below(math.max(tonumber(log_start), tonumber(local_start or 0)))
  redis.call("UNLINK", producers)
  if archived ~= "" then redis.call("HSET", producers, "aborted", archived) end
end
if emptied then
  local start = string.format("%.0f", stop)
  redis.call("UNLINK", producers, times)
  redis.call("HSET", producers, "offset", start, "max_timestamp", "-1", "max_timestamp_base", "-1")
  redis.call("HSET", meta, "log_start", start, "local_start", start)
end
local last_indexed = redis.call("ZRANGE", times, -1, -1)[1]
while last_indexed and tonumber(last_indexed) >= stop do
  redis.call("ZREM", times, last_indexed)
  last_indexed = redis.call("ZRANGE", times, -1, -1)[1]
end
redis.call("HDEL", meta, "cleaned", "cleaned_bytes")
redis.call("PUBLISH", ARGV[7], "repaired")
return { ERROR.NONE, 1, stop }
