#!lua flags=allow-oom
--[[ Apply or drop the offsets that a producer staged in a transaction that was decided. Done once for each transaction.

An offset that was committed after the staged one stays, as in Kafka: the order of the commits counts, not their end.

KEYS[1]  offsets  hash  <topic>:<partition> -> JSON; ":-1", the partitions with staged offsets
KEYS[2]  staged   hash  <producer id>:<topic>:<partition> -> JSON, then the committed JSON when it was staged; producer
         id -> "<ended_ms> <when>" of its last end, which refuses what is late
ARGV[1]  producer id
ARGV[2]  ended_ms of the transaction
ARGV[3]  1: commit
ARGV[4]  how long the last end of a producer is kept, ms
Returns  {NONE, number applied}; safe to run twice: the second run finds that the transaction has ended
Errors   none
]]
-- @include lib/errors
-- @include lib/now_ms
-- @include lib/note_unstable
local offsets, staged = KEYS[1], KEYS[2]
local producer_id, ended_ms, commits = ARGV[1], ARGV[2], ARGV[3] == "1"
local now = now_ms()
local now_text = string.format("%.0f", now)

local fence = redis.call("HGET", staged, producer_id)
if fence and tonumber(fence:match("^(-?%d+)")) >= tonumber(ended_ms) then return { ERROR.NONE, 0 } end

local function is_newest(entry, over, current)
  if not current then return over == "" end
  local staged_ms = tonumber(entry:match(OFFSET.LAST_COMMIT_TIME))
  local committed_ms = tonumber(current:match(OFFSET.COMMIT_TIME))
  return current == over or staged_ms > committed_ms
end

local applied = 0
for _, name in ipairs(redis.call("HKEYS", staged)) do
  local owner, partition = name:match("^(%d+):(.+)$")
  local value = redis.call("HGET", staged, name)
  if owner == producer_id then
    local stop = select(2, value:find(OFFSET.ANY_COMMIT_TIME_END))
    local entry, over = value:sub(1, stop), value:sub(stop + 1)
    local current = redis.call("HGET", offsets, partition)
    if commits and is_newest(entry, over, current) then
      redis.call("HSET", offsets, partition, entry)
      applied = applied + 1
    end
    redis.call("HDEL", staged, name)
  elseif not owner and now - tonumber(value:match(" (%d+)$")) > tonumber(ARGV[4]) then
    redis.call("HDEL", staged, name)
  end
end
redis.call("HSET", staged, producer_id, ended_ms .. " " .. now_text)
note_unstable(offsets, staged, now_text)
return { ERROR.NONE, applied }
