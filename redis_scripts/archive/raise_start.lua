#!lua flags=allow-oom
--[[ Remove segments that lie wholly below an offset, and below the log start; the archive starts after them.

KEYS[1]  segments  zset  JSON of each segment -> its last offset
KEYS[2]  archive   hash  start, end
KEYS[3]  meta      hash  log_start
ARGV[1]  offset
ARGV[2]  limit of segments removed
Returns  {NONE, start of the archive or -1, JSON of a removed segment, ...}; safe to run twice
Errors   UNKNOWN_TOPIC_OR_PARTITION  deleted, or never created
]]
-- @include lib/errors
local segments, archive, meta = KEYS[1], KEYS[2], KEYS[3]

local log_start = redis.call("HGET", meta, "log_start")
if not log_start then return { ERROR.UNKNOWN_TOPIC_OR_PARTITION } end
local below = math.min(tonumber(ARGV[1]), tonumber(log_start))

local found = redis.call("ZRANGEBYSCORE", segments, "-inf", string.format("(%.0f", below), "WITHSCORES", "LIMIT", 0, ARGV[2])
local reply = { ERROR.NONE, tonumber(redis.call("HGET", archive, "start") or -1) }
for i = 1, #found, 2 do
  redis.call("ZREM", segments, found[i])
  reply[2] = tonumber(found[i + 1]) + 1
  reply[#reply + 1] = found[i]
end
if #found > 0 then redis.call("HSET", archive, "start", string.format("%.0f", reply[2])) end
return reply
