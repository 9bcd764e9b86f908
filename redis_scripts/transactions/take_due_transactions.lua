#!lua flags=allow-oom
--[[ Take the transactional ids of one shard whose deadline has passed; each is taken again later unless it was moved.

A sweep writes a mark of its time, about once a second, while the shard has ids: a gap between two marks means that no
broker swept or that Redis's clock stepped forward, a mark ahead of the clock that it stepped back. After a step back
all deadlines of open and decided transactions are due, because who reads the record sets the right one.

KEYS[1]  deadlines  zset  name -> when a broker must look at it, ms; the marks of sweeps, below 0
ARGV[1]  minimum age of a deadline, ms
ARGV[2]  time until a taken one is taken again, ms
ARGV[3]  maximum number
ARGV[4]  a gap between two sweeps, ms
ARGV[5]  how far ahead the deadline of an open transaction is at most, ms
Returns  {NONE, names ...}; run twice, the second run takes what the first one left
Errors   none
]]
-- @include lib/errors
-- @include lib/now_ms
local deadlines, now, reply = KEYS[1], now_ms(), { ERROR.NONE }
local gap_ms, ahead_max_ms = tonumber(ARGV[4]), tonumber(ARGV[5])
local MARK_EVERY_MS, STEP_MS = 1000, 1000

local function mark(name)
  redis.call("ZADD", deadlines, string.format("-%.0f", now), name)
end

local function time_of(name)
  return -tonumber(redis.call("ZSCORE", deadlines, name) or 0)
end

local function make_due(from, to)
  for _, name in ipairs(redis.call("ZRANGEBYSCORE", deadlines, string.format("(%.0f", from), string.format("%.0f", to))) do
    redis.call("ZADD", deadlines, string.format("%.0f", now), name)
  end
end

local function leave_mark()
  local swept_at = time_of(SWEEP.SWEPT)
  if redis.call("ZCOUNT", deadlines, "(0", "+inf") == 0 then
    return swept_at > 0 and redis.call("ZREM", deadlines, SWEEP.SWEPT, SWEEP.RESUMED)
  end
  if swept_at - now > STEP_MS then
    if time_of(SWEEP.RESUMED) > now then mark(SWEEP.RESUMED) end
    mark(SWEEP.SWEPT)
    return make_due(now, swept_at + ahead_max_ms)
  end
  if swept_at > 0 and now - swept_at > gap_ms then mark(SWEEP.RESUMED) end
  if now - swept_at >= MARK_EVERY_MS then mark(SWEEP.SWEPT) end
end
leave_mark()

local until_ms = string.format("%.0f", now - tonumber(ARGV[1]))
for _, name in ipairs(redis.call("ZRANGEBYSCORE", deadlines, "(0", until_ms, "LIMIT", 0, ARGV[3])) do
  redis.call("ZADD", deadlines, string.format("%.0f", now + tonumber(ARGV[2])), name)
  reply[#reply + 1] = name
end
return reply
