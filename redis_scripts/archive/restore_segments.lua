#!lua
--[[ Add segments of a backup to the index of a partition whose log is not restored yet.

KEYS[1]  segments  zset  JSON of each segment -> its last offset
KEYS[2]  meta      hash  exists once the log is restored
ARGV[1]  and on: last offset, JSON, ... of each segment
Returns  {NONE, 1}, or {NONE, 0} if there is a log; safe to run twice
Errors   none
]]
-- @include lib/errors
local segments, meta = KEYS[1], KEYS[2]

if redis.call("EXISTS", meta) == 1 then return { ERROR.NONE, 0 } end
for i = 1, #ARGV, 2 do
  redis.call("ZADD", segments, ARGV[i], ARGV[i + 1])
end
return { ERROR.NONE, 1 }
