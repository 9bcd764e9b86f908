#!lua flags=allow-oom
--[[ Raise the log start offset, and remove a slice of the entries that lie wholly below it.

The last entry is never removed (it alone knows where the log ends), nor the one that holds the log start.
Whole nodes of the stream go; what stays below the log start is hidden by it.

KEYS[1]  log        stream
KEYS[2]  meta       hash  state, log_start, bytes, batches
KEYS[3]  times      zset  base offset, 19 digits -> largest timestamp
KEYS[4]  producers  hash  offset of the snapshot, which the log start never passes
ARGV[1]  log start offset
ARGV[2]  most entries removed
ARGV[3]  bytes that the caller counted below the new log start
ARGV[4]  wake channel: hears "trimmed"
Returns  {NONE, log start offset, entries removed}; safe to run twice
Errors   UNKNOWN_TOPIC_OR_PARTITION  deleted
         OFFSET_OUT_OF_RANGE         above the snapshot: write that first
]]
-- @include lib/errors
local log, meta, times, producers = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local log_start = ARGV[1]

local state, current = unpack(redis.call("HMGET", meta, "state", "log_start"))
if state ~= "ready" then return { ERROR.UNKNOWN_TOPIC_OR_PARTITION } end
if tonumber(log_start) > tonumber(redis.call("HGET", producers, "offset") or 0) then return { ERROR.OFFSET_OUT_OF_RANGE } end

if tonumber(log_start) > tonumber(current) then
  redis.call("HSET", meta, "log_start", log_start)
  redis.call("HINCRBY", meta, "bytes", string.format("%.0f", 0 - tonumber(ARGV[3])))
  redis.call("PUBLISH", ARGV[4], "trimmed")
else
  log_start = current
end

local holder = redis.call("XREVRANGE", log, string.format("%.0f-1", tonumber(log_start)), "-", "COUNT", 1)[1]
if not holder then return { ERROR.NONE, log_start, 0 } end
local removed = redis.call("XTRIM", log, "MINID", "~", holder[1], "LIMIT", ARGV[2])
if removed > 0 then
  for _, base in ipairs(redis.call("ZRANGE", times, 0, 99)) do
    if tonumber(base) >= tonumber(log_start) then break end
    redis.call("ZREM", times, base)
  end
end
return { ERROR.NONE, log_start, removed }
