#!lua flags=allow-oom
--[[ Apply or drop the offsets that a producer staged in a transaction that was decided. Done once for each transaction.

An offset that was committed after the staged one stays, as in Kafka: the order of the commits counts, not their end.

KEYS[1]  offsets  hash  <topic>:<partition> -> JSON; ":-1", the partitions with staged offsets
KEYS[2]  staged   hash  <producer id>:<topic>:<partition> -> JSON, then the committed JSON when it was staged; of older
         brokers producer id -> "<ended_ms> <when>", in place of `ended`
KEYS[3]  ended    zset  the shard's: <producer id> <group> -> ended_ms of its last transaction, which refuses what is late
ARGV[1]  producer id
ARGV[2]  ended_ms of the transaction
ARGV[3]  1: commit
ARGV[4]  how long the last end of a producer is kept, ms
ARGV[5]  the group's name in the shard's keys
Returns  {NONE, number applied}; safe to run twice: the second run finds that the transaction has ended
Errors   none
]]
-- @include lib/errors
-- @include lib/now_ms
-- @include lib/last_end
-- @include lib/note_unstable
local offsets, staged, ended = KEYS[1], KEYS[2], KEYS[3]
local producer_id, ended_ms, commits, ref = ARGV[1], ARGV[2], ARGV[3] == "1", ARGV[5]
local now = now_ms()
local expired_ms = now - tonumber(ARGV[4])

if last_end(ended, staged, producer_id, ref) >= tonumber(ended_ms) then return { ERROR.NONE, 0 } end

local function is_newest(entry, over, current)
  if not current then return over == "" end
  local staged_ms = tonumber(entry:match(OFFSET.LAST_COMMIT_TIME))
  local committed_ms = tonumber(current:match(OFFSET.COMMIT_TIME))
  return current == over or staged_ms > committed_ms
end

local applied = 0
for _, name in ipairs(redis.call("HKEYS", staged)) do
  local owner, partition = name:match("^(%d+):(.+)$")
  if owner == producer_id then
    local value = redis.call("HGET", staged, name)
    local stop = select(2, value:find(OFFSET.ANY_COMMIT_TIME_END))
    local entry, over = value:sub(1, stop), value:sub(stop + 1)
    local current = redis.call("HGET", offsets, partition)
    if commits and is_newest(entry, over, current) then
      redis.call("HSET", offsets, partition, entry)
      applied = applied + 1
    end
    redis.call("HDEL", staged, name)
  elseif not owner and tonumber(redis.call("HGET", staged, name):match(" (%d+)$")) < expired_ms then
    redis.call("HDEL", staged, name)
  end
end
redis.call("ZREMRANGEBYSCORE", ended, "-inf", string.format("(%.0f", expired_ms))
redis.call("ZADD", ended, ended_ms, producer_id .. " " .. ref)
note_unstable(offsets, staged, string.format("%.0f", now))
return { ERROR.NONE, applied }
