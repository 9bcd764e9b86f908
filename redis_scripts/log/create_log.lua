#!lua
--[[ Create one partition's log: an empty stream whose first entry gets id 0-1, and its meta.

A stream of format `record` may exist: its name is known, so a Redis program may have written to it already.

KEYS[1]  log   stream  created empty, last id 0-0
KEYS[2]  meta  hash    state, log_start, epochs, log_version, bytes, batches, format unless it is batch
ARGV[1]  format: batch or record
Returns  {NONE}; safe to run twice
Errors   UNKNOWN_TOPIC_OR_PARTITION  this topic id was deleted and must not be created again
]]
-- @include lib/errors
local log, meta = KEYS[1], KEYS[2]

if redis.call("HGET", meta, "state") == "deleted" then return { ERROR.UNKNOWN_TOPIC_OR_PARTITION } end

if redis.call("EXISTS", log) == 0 then
  redis.call("XGROUP", "CREATE", log, "made", "0-0", "MKSTREAM")
  redis.call("XGROUP", "DESTROY", log, "made")
end
if redis.call("EXISTS", meta) == 0 then
  redis.call("HSET", meta, "state", "ready", "log_start", "0", "epochs", "0:0", "log_version", "0", "bytes", "0", "batches", "0")
  if ARGV[1] ~= "batch" then redis.call("HSET", meta, "format", ARGV[1]) end
end
return { ERROR.NONE }
