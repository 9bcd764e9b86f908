#!lua flags=allow-oom
--[[ Take what is overdue in one shard; a taken item is returned again after a while unless it was expired.

A sweep writes a mark of its time, about once a second, while the shard has deadlines: a gap between two marks means
that no broker swept or that Redis's clock stepped forward, a mark ahead of the clock that it stepped back. A step back
becomes an item itself, because the reply that reports it may be lost.

KEYS[1]  deadlines  zset  kind|group -> earliest deadline, ms; clock|ms of a step back; the marks of sweeps, below 0
ARGV[1]  minimum age of a deadline, ms
ARGV[2]  time until a taken item is returned again, ms
ARGV[3]  maximum number of items
ARGV[4]  1: write a mark
Returns  {NONE, ms until the next deadline or -1, items...}; run twice, the second run takes the items that the first
         one left
Errors   none
]]
-- @include lib/errors
-- @include lib/now_ms
local deadlines, now = KEYS[1], now_ms()
local late_ms, hold_ms, items_max, marks = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] == "1"
local MARK_EVERY_MS, STEP_MS = 1000, 1000

local function mark(name)
  redis.call("ZADD", deadlines, string.format("-%.0f", now), name)
end

local function first_due()
  return redis.call("ZRANGEBYSCORE", deadlines, "(0", "+inf", "WITHSCORES", "LIMIT", 0, 1)[2]
end

local first = first_due()
local function stepped_back(ms)
  if -tonumber(redis.call("ZSCORE", deadlines, SWEEP.RESUMED) or 0) > now then mark(SWEEP.RESUMED) end
  mark(SWEEP.SWEPT)
  redis.call("ZADD", deadlines, string.format("%.0f", now), string.format(SWEEP.STEPPED_BACK, ms))
  first = first_due()
end

local function leave_mark()
  local swept_at = -tonumber(redis.call("ZSCORE", deadlines, SWEEP.SWEPT) or 0)
  if not first then return swept_at > 0 and redis.call("ZREM", deadlines, SWEEP.SWEPT, SWEEP.RESUMED) end
  if swept_at - now > STEP_MS then return stepped_back(swept_at - now) end
  if swept_at > 0 and now - swept_at > SWEEP.GAP_MS then mark(SWEEP.RESUMED) end
  if now - swept_at >= MARK_EVERY_MS then mark(SWEEP.SWEPT) end
end
if marks then leave_mark() end

local items = {}
if first and tonumber(first) <= now - late_ms then
  items = redis.call("ZRANGEBYSCORE", deadlines, "(0", string.format("%.0f", now - late_ms), "LIMIT", 0, items_max)
  for _, item in ipairs(items) do
    redis.call("ZADD", deadlines, string.format("%.0f", now + hold_ms), item)
  end
  first = first_due()
end
local reply = { ERROR.NONE, first and math.max(tonumber(first) + late_ms - now, 0) or -1 }
for _, item in ipairs(items) do reply[#reply + 1] = item end
return reply
