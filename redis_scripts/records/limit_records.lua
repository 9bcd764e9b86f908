#!lua flags=allow-oom
--[[ Remove a slice of the oldest entries of a stream of format `record` above a number, and raise the log start.

Whole nodes of the stream are removed, so some entries more than the number may stay.

KEYS[1]  records  stream
KEYS[2]  meta     hash    state, log_start
ARGV[1]  number of entries to keep
ARGV[2]  sequence bits
ARGV[3]  limit of entries removed
ARGV[4]  wake channel: gets "trimmed"
Returns  {NONE, entries removed}; running twice removes another slice, never below the number
Errors   UNKNOWN_TOPIC_OR_PARTITION  deleted
]]
-- @include lib/errors
local records, meta = KEYS[1], KEYS[2]

local state, log_start = unpack(redis.call("HMGET", meta, "state", "log_start"))
if state ~= "ready" then return { ERROR.UNKNOWN_TOPIC_OR_PARTITION } end
local removed = redis.call("XTRIM", records, "MAXLEN", "~", ARGV[1], "LIMIT", ARGV[3])
local first = redis.call("XRANGE", records, "-", "+", "COUNT", 1)[1]
if removed > 0 and first then
  local size = 2 ^ tonumber(ARGV[2])
  local ms, sequence = string.match(first[1], "^(%d+)-(%d+)$")
  local offset = tonumber(ms) * size + math.min(tonumber(sequence), size - 1)
  if offset > tonumber(log_start) then redis.call("HSET", meta, "log_start", string.format("%.0f", offset)) end
  redis.call("PUBLISH", ARGV[4], "trimmed")
end
return { ERROR.NONE, removed }
