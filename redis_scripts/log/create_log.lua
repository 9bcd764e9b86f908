#!lua
--[[ Create one partition's log: an empty stream whose first entry gets id 0-1, and its meta.

KEYS[1]  log   stream  created empty, last id 0-0
KEYS[2]  meta  hash    state, log_start, epochs, log_version, bytes, batches
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
end
return { ERROR.NONE }
