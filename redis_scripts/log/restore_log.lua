#!lua
--[[ Create a partition's log from a backup, without its records: the next offset is the log end of the backup.

The last entry of a log shows where it ends, so the stream gets an entry whose batches have no records and end there.

KEYS[1]  log        stream  created with one entry, or empty
KEYS[2]  meta       hash    state, log_start, local_start, epochs, incarnation, log_version, bytes, batches, format
KEYS[3]  producers  hash    offset: loading a log begins behind the entry; aborted, max_timestamp,
                           max_timestamp_base
KEYS[4]  archive    hash    start, end
ARGV[1]  format: batch or record
ARGV[2]  log start offset
ARGV[3]  local start offset
ARGV[4]  log end offset; of format record the last id
ARGV[5]  leader epochs
ARGV[6]  failover epoch
ARGV[7]  start of the archive, or ""
ARGV[8]  end of the archive
ARGV[9]  aborted transactions as text, or ""
ARGV[10] largest timestamp in the archive, ms; -1 for none
ARGV[11] base offset of the entry
ARGV[12] and on: its batches; none for a log that ends at 0
Returns  {NONE, 1}, or {NONE, 0} if there is a log; safe to run twice
Errors   UNKNOWN_TOPIC_OR_PARTITION  this topic id was deleted and must not be created again
]]
-- @include lib/errors
local log, meta, producers, archive = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local format, log_start, local_start, log_end = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local state = redis.call("HGET", meta, "state")
if state == "deleted" then return { ERROR.UNKNOWN_TOPIC_OR_PARTITION } end
if state then return { ERROR.NONE, 0 } end
if redis.call("EXISTS", log) == 0 then
  redis.call("XGROUP", "CREATE", log, "made", "0-0", "MKSTREAM")
  redis.call("XGROUP", "DESTROY", log, "made")
  if format == "record" and log_end ~= "0-0" then
    redis.call("XADD", log, log_end, "restored", "") -- the removed entry leaves its id as the stream's last one
    redis.call("XTRIM", log, "MAXLEN", 0)
  elseif #ARGV > 11 then
    local entry = { "w", "restore" }
    for i = 12, #ARGV do
      entry[#entry + 1] = "b"
      entry[#entry + 1] = ARGV[i]
    end
    redis.call("XADD", log, ARGV[11] .. "-1", unpack(entry))
  end
end
if format == "record" then
  redis.call("HSET", meta, "format", format, "last_id", log_end)
else
  redis.call("HSET", producers, "offset", log_end, "max_timestamp", ARGV[10], "max_timestamp_base", "-1")
  if ARGV[9] ~= "" then redis.call("HSET", producers, "aborted", ARGV[9]) end
end
if ARGV[7] ~= "" then redis.call("HSET", archive, "start", ARGV[7], "end", ARGV[8]) end
redis.call("HSET", meta, "state", "ready", "log_start", log_start, "local_start", local_start, "epochs", ARGV[5],
  "incarnation", ARGV[6], "log_version", "0", "bytes", "0", "batches", "0")
return { ERROR.NONE, 1 }
