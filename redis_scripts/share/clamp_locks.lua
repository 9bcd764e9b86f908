#!lua flags=allow-oom
--[[ Limit the locks of one share-partition to now plus their duration, after Redis's clock stepped back.

A row without an owner waits for its next delivery: at most the longest backoff, unless records have a time of delivery.

KEYS[1]     configs    hash  configs of the group
KEYS[2...]  partition  hash  rows: first offset -> last offset, delivery count, size, owner; behind it available and
            acquired, which are not read, and locks (zset, first offset -> deadline, ms)
ARGV[1]     default of the lock duration, ms
Returns     {NONE, number of locks clamped}; safe to run twice: a clamped lock is not too far ahead
Errors      none
]]
-- @include lib/errors
-- @include lib/now_ms
-- @include lib/number_text
-- @include lib/share_partition
local p = share_partition.open(2)
if not p then return { ERROR.NONE, 0 } end
local found = redis.call("HMGET", KEYS[1], "share.record.lock.duration.ms", "share.retry.backoff.max.ms", "share.deliver.at.enable")
local locked_until = now_ms() + tonumber(found[1] or ARGV[1])
local waits_until = now_ms() + tonumber(found[2] or 60000)
local clamped = 0

local firsts = redis.call("ZRANGEBYSCORE", p.locks, "(" .. number_text(math.min(locked_until, waits_until)), "+inf")
for _, row in ipairs(share_partition.rows_of(p, firsts)) do
  local waits = row.owner == ""
  if not (waits and found[3] == "true") then
    local latest, first = number_text(waits and waits_until or locked_until), number_text(row.first)
    clamped = clamped + redis.call("ZADD", p.locks, "XX", "CH", "LT", latest, first)
  end
end
return { ERROR.NONE, clamped }
