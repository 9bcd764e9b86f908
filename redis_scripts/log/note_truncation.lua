#!lua flags=allow-oom
--[[ Note that a log lost its end in a fail-over, for operators. One loss is kept: the latest, with all that brokers knew.

KEYS[1]  meta  hash  state, truncated: `<end> <lost records> <failover epoch> <ms>`
ARGV[1]  log end that the fail-over left
ARGV[2]  records above it that the calling broker knew
ARGV[3]  failover epoch
Returns  {NONE}; safe to run twice
Errors   UNKNOWN_TOPIC_OR_PARTITION  deleted
]]
-- @include lib/errors
-- @include lib/now_ms
local meta, log_end, failover_epoch = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[3])
local end_before = log_end + tonumber(ARGV[2])

local state, noted = unpack(redis.call("HMGET", meta, "state", "truncated"))
if state ~= "ready" then return { ERROR.UNKNOWN_TOPIC_OR_PARTITION } end

if noted then
  local noted_end, noted_records, noted_epoch = string.match(noted, "^(%d+) (%d+) (%d+) ")
  if tonumber(noted_epoch) > failover_epoch then return { ERROR.NONE } end
  if tonumber(noted_epoch) == failover_epoch then
    end_before = math.max(end_before, noted_end + noted_records)
    log_end = math.min(log_end, tonumber(noted_end))
    if log_end == tonumber(noted_end) and end_before == noted_end + noted_records then return { ERROR.NONE } end
  end
end
redis.call(
  "HSET", meta, "truncated",
  string.format("%.0f %.0f %.0f %.0f", log_end, end_before - log_end, failover_epoch, now_ms())
)
return { ERROR.NONE }
