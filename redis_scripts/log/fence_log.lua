#!lua flags=allow-oom
--[[ Tie a log to an incarnation of the server before a view of it is loaded.

Where the log knows an earlier incarnation its end may have been lost: a new leader epoch starts at what is
left, and no append of the new incarnation comes before that. The epoch is the incarnation less 1, so that
every broker can tell clients the epoch of any partition without a look at its log.

KEYS[1]  log   stream
KEYS[2]  meta  hash    state, incarnation, epochs, log_start, bytes
ARGV[1]  incarnation
Returns  {NONE, log_start, epochs, bytes, number of entries}; safe to run twice
Errors   UNKNOWN_TOPIC_OR_PARTITION  deleted, or never made
]]
-- @include lib/errors
-- @include lib/log_end
local log, meta = KEYS[1], KEYS[2]
local incarnation = ARGV[1]

local state, known, epochs = unpack(redis.call("HMGET", meta, "state", "incarnation", "epochs"))
if state ~= "ready" or redis.call("EXISTS", log) == 0 then return { ERROR.UNKNOWN_TOPIC_OR_PARTITION } end

if tonumber(known or 0) < tonumber(incarnation) then
  local stop, newest, kept = log_end(log), tonumber(incarnation) - 1, {}
  for epoch, start in string.gmatch(epochs, "(%d+):(%d+)") do
    if tonumber(epoch) < newest and tonumber(start) < stop then kept[#kept + 1] = epoch .. ":" .. start end
  end
  kept[#kept + 1] = string.format("%.0f:%.0f", newest, stop)
  epochs = table.concat(kept, " ")
  redis.call("HSET", meta, "incarnation", incarnation, "epochs", epochs)
end

local log_start, bytes = unpack(redis.call("HMGET", meta, "log_start", "bytes"))
return { ERROR.NONE, log_start, epochs, bytes, redis.call("XLEN", log) }
