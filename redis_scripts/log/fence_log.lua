#!lua flags=allow-oom
--[[ Tie a log to an incarnation of the server before a view of it is loaded.

Where the log knows another incarnation its end may have been lost: a new leader epoch starts at what is
left, and no append of the new incarnation comes before that.

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

if known ~= incarnation then
  if known then
    local stop, newest, kept = log_end(log), 0, {}
    for epoch, start in string.gmatch(epochs, "(%d+):(%d+)") do
      newest = tonumber(epoch)
      if tonumber(start) < stop then kept[#kept + 1] = epoch .. ":" .. start end
    end
    kept[#kept + 1] = string.format("%.0f:%.0f", newest + 1, stop)
    epochs = table.concat(kept, " ")
  end
  redis.call("HSET", meta, "incarnation", incarnation, "epochs", epochs)
end

local log_start, bytes = unpack(redis.call("HMGET", meta, "log_start", "bytes"))
return { ERROR.NONE, log_start, epochs, bytes, redis.call("XLEN", log) }
