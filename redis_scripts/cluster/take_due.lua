#!lua flags=allow-oom
--[[ Take what is overdue in one shard; a taken item comes back after a while unless it was settled.

KEYS[1]  deadlines  zset  kind|group -> earliest deadline, ms
ARGV[1]  how long something must be overdue, ms
ARGV[2]  how long it is taken for, ms
ARGV[3]  most items
Returns  {NONE, ms until the next is due or -1, items...}; run twice, the second takes what the first left
Errors   none
]]
-- @include lib/errors
-- @include lib/clock
local deadlines = KEYS[1]
local late_ms, hold_ms, items_max = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])

local now = now_ms()
local items = redis.call("ZRANGEBYSCORE", deadlines, "-inf", string.format("%.0f", now - late_ms), "LIMIT", 0, items_max)
for _, item in ipairs(items) do
  redis.call("ZADD", deadlines, string.format("%.0f", now + hold_ms), item)
end
local first = redis.call("ZRANGE", deadlines, 0, 0, "WITHSCORES")[2]
local reply = { ERROR.NONE, first and math.max(tonumber(first) + late_ms - now, 0) or -1 }
for _, item in ipairs(items) do reply[#reply + 1] = item end
return reply
