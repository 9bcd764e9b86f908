#!lua flags=allow-oom
--[[ Replace several segments by one with the same range, if all of them are still in the index (compaction).

KEYS[1]  segments  zset  JSON of each segment -> its last offset
ARGV[1]  last offset of the new segment
ARGV[2]  JSON of the new segment
ARGV[3]  and on: JSON of each segment that it replaces
Returns  {NONE, 1 if the new segment is in the index now, else 0}; safe to run twice
Errors   none
]]
-- @include lib/errors
local segments, last, new = KEYS[1], ARGV[1], ARGV[2]

if redis.call("ZSCORE", segments, new) then return { ERROR.NONE, 1 } end
for i = 3, #ARGV do
  if not redis.call("ZSCORE", segments, ARGV[i]) then return { ERROR.NONE, 0 } end
end

for i = 3, #ARGV do
  redis.call("ZREM", segments, ARGV[i])
end
redis.call("ZADD", segments, last, new)
return { ERROR.NONE, 1 }
