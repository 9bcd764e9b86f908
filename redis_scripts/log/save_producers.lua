#!lua flags=allow-oom
--[[ Store the snapshot of a producer table at an offset; only a higher offset replaces the stored snapshot.

A server that was promoted, or came back with older data, may lack the end of the log while `incarnation` is still that of
the one before it: a snapshot above the end is refused, and a stored one replaced. After a last entry that was removed by
hand the log ends where the snapshot says: the stream's last id is then above its entries.

KEYS[1]  producers  hash    "offset", "max_timestamp", "max_timestamp_base", and producer id -> its state as text
KEYS[2]  meta       hash    state, incarnation
KEYS[3]  log        stream
ARGV[1]  failover epoch of the log state that the snapshot comes from
ARGV[2]  offset
ARGV[3]  largest timestamp below the offset, ms
ARGV[4]  base offset of its entry
ARGV[5]  and on: producer id, state, ...
Returns  {NONE, 1 if stored}; safe to run twice
Errors   UNKNOWN_TOPIC_OR_PARTITION  deleted
]]
-- @include lib/errors
-- @include lib/last_entry
-- @include lib/last_id
local producers, meta, log = KEYS[1], KEYS[2], KEYS[3]
local failover_epoch, offset = ARGV[1], tonumber(ARGV[2])

local state, current = unpack(redis.call("HMGET", meta, "state", "incarnation"))
if state ~= "ready" then return { ERROR.UNKNOWN_TOPIC_OR_PARTITION } end
if current ~= failover_epoch then return { ERROR.NONE, 0 } end

local entry, stop, stray = last_entry(log, "+")
local function is_lost(at)
  if at <= (stop or 0) then return false end
  local last_assigned = last_id(log)
  return last_assigned == "0-0" or last_assigned == stray or (not stray and entry and last_assigned == entry[1])
end

if is_lost(offset) then return { ERROR.NONE, 0 } end
local stored = tonumber(redis.call("HGET", producers, "offset") or -1)
if stored >= offset and not (entry and is_lost(stored)) then return { ERROR.NONE, 0 } end

redis.call("UNLINK", producers)
redis.call("HSET", producers, "offset", ARGV[2], "max_timestamp", ARGV[3], "max_timestamp_base", ARGV[4])
for i = 5, #ARGV, 2000 do
  redis.call("HSET", producers, unpack(ARGV, i, math.min(i + 1999, #ARGV)))
end
return { ERROR.NONE, 1 }
