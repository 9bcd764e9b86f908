#!lua flags=allow-oom
--[[ Store the snapshot of a producer table at an offset; only a higher offset replaces the stored snapshot.

KEYS[1]  producers  hash  "offset", "max_timestamp", "max_timestamp_base", and producer id -> its state as text
KEYS[2]  meta       hash  state, incarnation
ARGV[1]  failover epoch of the log state that the snapshot comes from
ARGV[2]  offset
ARGV[3]  largest timestamp below the offset, ms
ARGV[4]  base offset of its entry
ARGV[5]  and on: producer id, state, ...
Returns  {NONE, 1 if stored}; safe to run twice
Errors   UNKNOWN_TOPIC_OR_PARTITION  deleted
]]
-- @include lib/errors
local producers, meta = KEYS[1], KEYS[2]
local failover_epoch, offset = ARGV[1], ARGV[2]

local state, current = unpack(redis.call("HMGET", meta, "state", "incarnation"))
if state ~= "ready" then return { ERROR.UNKNOWN_TOPIC_OR_PARTITION } end
if current ~= failover_epoch then return { ERROR.NONE, 0 } end
if tonumber(redis.call("HGET", producers, "offset") or -1) >= tonumber(offset) then return { ERROR.NONE, 0 } end

redis.call("UNLINK", producers)
redis.call("HSET", producers, "offset", offset, "max_timestamp", ARGV[3], "max_timestamp_base", ARGV[4])
for i = 5, #ARGV, 2000 do
  redis.call("HSET", producers, unpack(ARGV, i, math.min(i + 1999, #ARGV)))
end
return { ERROR.NONE, 1 }
