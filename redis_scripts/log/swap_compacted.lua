#!lua flags=allow-oom
--[[ Replace a log by its compacted copy.

The caller has filled the new stream with the kept batches below an offset, then with the entries from there on,
unchanged. This script copies the entries appended since then, if they are few. The last entry is never compacted, so
the new stream has the same last id: an append of a broker that does not know the new stream yet is still right. Below
that offset the new stream has gaps, so the producer snapshot must reach it: brokers load the log from there. Each Redis
group of the log keeps its position in the new stream.

Brokers load the log again, and without the aborted transactions that ended below the previous compacted offset: none of
their batches is left. An archive may still contain them.

KEYS[1]  log        stream  replaced
KEYS[2]  compacted  stream  becomes the log
KEYS[3]  meta       hash    state, incarnation, log_version, log_start, local_start, bytes, cleaned, cleaned_bytes,
                            cleaned_before
KEYS[4]  producers  hash    offset of the snapshot
KEYS[5]  archive    hash
ARGV[1]  failover epoch when the new stream was begun
ARGV[2]  master_replid then: a server with another history may have lost a part of the new stream
ARGV[3]  log_version then
ARGV[4]  log start then
ARGV[5]  local start then: the bytes of what is trimmed are counted once only
ARGV[6]  entries of the new stream: another number means that a part of it was lost
ARGV[7]  id of the last entry that was copied
ARGV[8]  limit of entries copied here
ARGV[9]  offset below which the new stream is compacted
ARGV[10] bytes of its batches below that offset
ARGV[11] bytes of all its batches
ARGV[12] wake channel: gets "compacted"
Returns  {NONE, 1} if the new stream is the log, {NONE, 0} if more is missing: copy it and retry; running twice: the
         second run is refused
Errors   UNKNOWN_TOPIC_OR_PARTITION  deleted, or there is no new stream
         FENCED_LEADER_EPOCH         another server, another failover epoch, or other streams or starts than then
         OFFSET_OUT_OF_RANGE         above the snapshot: write the snapshot first
]]
-- @include lib/errors
-- @include lib/replace_log
-- @include lib/replid
local log, compacted, meta, producers, archive = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]

local state, failover_epoch, version, log_start, local_start =
  unpack(redis.call("HMGET", meta, "state", "incarnation", "log_version", "log_start", "local_start"))
if state ~= "ready" or redis.call("EXISTS", log, compacted) < 2 then return { ERROR.UNKNOWN_TOPIC_OR_PARTITION } end
local is_whole = redis.call("XLEN", compacted) == tonumber(ARGV[6])
if (failover_epoch or "0") ~= ARGV[1] or replid() ~= ARGV[2] or (version or "0") ~= ARGV[3] or not is_whole then
  return { ERROR.FENCED_LEADER_EPOCH }
end
if log_start ~= ARGV[4] or (local_start or log_start) ~= ARGV[5] then return { ERROR.FENCED_LEADER_EPOCH } end
if tonumber(redis.call("HGET", producers, "offset") or 0) < tonumber(ARGV[9]) then return { ERROR.OFFSET_OUT_OF_RANGE } end

local missing = replace_log.entries_after(log, ARGV[7], tonumber(ARGV[8]))
if not missing then return { ERROR.NONE, 0 } end

replace_log.replace(log, compacted, meta, missing)
if redis.call("EXISTS", archive) == 0 then
  redis.call("HSET", meta, "cleaned_before", redis.call("HGET", meta, "cleaned") or "0")
end
redis.call("HSET", meta, "cleaned", ARGV[9], "cleaned_bytes", ARGV[10], "bytes", ARGV[11])
redis.call("PUBLISH", ARGV[12], "compacted")
return { ERROR.NONE, 1 }
