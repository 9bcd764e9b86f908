#!lua flags=allow-oom
--[[ Apply or drop offsets that a producer staged in a transaction that was decided, 1,000 at most; the last call notes
the end.

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
Returns  {NONE, 1 if some are left, 1 if an earlier call ended some or all, then of each offset that this one applied:
         field, topic id, offset}; safe to run twice, and by several brokers: each continues where the others are
Errors   none
]]
-- @include lib/errors
-- @include lib/now_ms
-- @include lib/last_end
-- @include lib/staged_list
local offsets, staged, ended = KEYS[1], KEYS[2], KEYS[3]
local producer_id, ended_ms, commits, ref = ARGV[1], ARGV[2], ARGV[3] == "1", ARGV[5]
local ENTRIES_MAX = 1000

if last_end(ended, staged, producer_id, ref) >= tonumber(ended_ms) then return { ERROR.NONE, 0, 1 } end

local list, last_ms = staged_list.read(offsets, staged)
local partitions, has_more, is_begun
list, partitions, has_more, is_begun = staged_list.take(list, producer_id, ENTRIES_MAX)
local reply = { ERROR.NONE, has_more and 1 or 0, is_begun and 1 or 0 }

local function is_newest(entry, over, current)
  if not current then return over == "" end
  local staged_ms = tonumber(entry:match(OFFSET.LAST_COMMIT_TIME))
  local committed_ms = tonumber(current:match(OFFSET.COMMIT_TIME))
  return current == over or staged_ms > committed_ms
end

local fields, applied = {}, {}
for i, partition in ipairs(partitions) do fields[i] = producer_id .. ":" .. partition end

-- Note the entry of a staged value, unless a newer offset was committed.
local function note_entry(partition, value, current)
  local stop = select(2, value:find(OFFSET.ANY_COMMIT_TIME_END))
  local entry = value:sub(1, stop)
  if not is_newest(entry, value:sub(stop + 1), current) then return end
  local at, last = #applied, #reply
  applied[at + 1], applied[at + 2] = partition, entry
  reply[last + 1] = partition
  reply[last + 2], reply[last + 3] = entry:match(OFFSET.TOPIC_ID), entry:match(OFFSET.OFFSET)
end

if commits and fields[1] then
  local values = redis.call("HMGET", staged, unpack(fields))
  local current = redis.call("HMGET", offsets, unpack(partitions))
  for i, partition in ipairs(partitions) do
    if values[i] then note_entry(partition, values[i], current[i]) end
  end
end
if applied[1] then redis.call("HSET", offsets, unpack(applied)) end
if fields[1] then redis.call("HDEL", staged, unpack(fields)) end
staged_list.write(offsets, list, last_ms)
if has_more then return reply end

local expired_ms = now_ms() - tonumber(ARGV[4])
redis.call("ZREMRANGEBYSCORE", ended, "-inf", string.format("(%.0f", expired_ms))
redis.call("ZADD", ended, ended_ms, producer_id .. " " .. ref)
if list ~= "" then return reply end
for _, name in ipairs(redis.call("HKEYS", staged)) do -- the ends that older brokers stored there
  local stored_ms = tonumber(redis.call("HGET", staged, name):match(" (%d+)$"))
  if stored_ms and stored_ms < expired_ms then redis.call("HDEL", staged, name) end
end
return reply
