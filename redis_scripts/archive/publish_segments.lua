#!lua flags=allow-oom
--[[ Append the segments that one micro-batch wrote of a partition to the end of its archive: all, or none.

Evaluated by offsets, never by the number of the micro-batch: Spark counts from 0 again after a lost checkpoint.
All at once, because a repeated micro-batch reads the same range, but may split it elsewhere.

KEYS[1]  segments  zset  JSON of each segment -> its last offset
KEYS[2]  archive   hash  archiver, fence, start, end
KEYS[3]  meta      hash  state
ARGV[1]  number of the archiver's start: it takes a partition whose fence is lower
ARGV[2]  archiver: the token of that start
ARGV[3]  from offset of the first segment
ARGV[4]  end offset of the last segment
ARGV[5]  master_replid of the primaries before the segments were read: another one may lack the end of their log, where
         producers then write other records
ARGV[6]  and on: last offset, JSON, ... of each segment, in order
Returns  {NONE, outcome, start, end}, the present offsets, -1 if nothing was published; a repeat is a duplicate
         added      they began at the end of the archive, or started it
         duplicate  the archive contains this range
         conflict   neither
         stale      this server is none of those primaries
         fenced     a later start of an archiver has the partition
Errors   UNKNOWN_TOPIC_OR_PARTITION  deleted
]]
-- @include lib/errors
-- @include lib/replid
local segments, archive, meta = KEYS[1], KEYS[2], KEYS[3]
local number, archiver, from, stop = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

if redis.call("HGET", meta, "state") ~= "ready" then return { ERROR.UNKNOWN_TOPIC_OR_PARTITION } end
local fence, holder, first, last = unpack(redis.call("HMGET", archive, "fence", "archiver", "start", "end"))
first, last = tonumber(first or -1), tonumber(last or -1)

if holder ~= archiver and tonumber(fence or 0) >= number then return { ERROR.NONE, "fenced", first, last } end
if stop <= last then return { ERROR.NONE, "duplicate", first, last } end
if last >= 0 and from ~= last then return { ERROR.NONE, "conflict", first, last } end
if not string.find(ARGV[5], replid(), 1, true) then return { ERROR.NONE, "stale", first, last } end

for i = 6, #ARGV, 2 do
  redis.call("ZADD", segments, ARGV[i], ARGV[i + 1])
end
if holder ~= archiver then redis.call("HSET", archive, "archiver", archiver, "fence", ARGV[1]) end
if last < 0 then
  first = from
  redis.call("HSET", archive, "start", ARGV[3])
end
redis.call("HSET", archive, "end", ARGV[4])
return { ERROR.NONE, "added", first, stop }
