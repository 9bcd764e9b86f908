#!lua flags=allow-oom
--[[ Raise the log start of a stream of format `record`, and remove a slice of the entries below it.

KEYS[1]  records  stream
KEYS[2]  meta     hash    state, log_start
ARGV[1]  id of the log start
ARGV[2]  log start offset; a lower one than the present changes nothing
ARGV[3]  limit of entries removed, about
ARGV[4]  wake channel: gets "trimmed"
Returns  {NONE, log start, 1 if there may be more to remove}; safe to run twice
Errors   UNKNOWN_TOPIC_OR_PARTITION  deleted
]]
-- @include lib/errors
local records, meta = KEYS[1], KEYS[2]

local state, log_start = unpack(redis.call("HMGET", meta, "state", "log_start"))
if state ~= "ready" then return { ERROR.UNKNOWN_TOPIC_OR_PARTITION } end
if tonumber(ARGV[2]) < tonumber(log_start) then return { ERROR.NONE, log_start, 0 } end
if tonumber(ARGV[2]) > tonumber(log_start) then
  redis.call("HSET", meta, "log_start", ARGV[2])
  redis.call("PUBLISH", ARGV[4], "trimmed")
end
if redis.call("XTRIM", records, "MINID", "~", ARGV[1], "LIMIT", ARGV[3]) > 0 then return { ERROR.NONE, ARGV[2], 1 } end
redis.call("XTRIM", records, "MINID", ARGV[1]) -- less than one node is left
return { ERROR.NONE, ARGV[2], 0 }
