#!lua flags=allow-oom
--[[ Remove one partition's data; its meta is `deleted` for a while, so that a late write cannot recreate the log.

The stream is removed once only: of format `record` it has the name of the one that a recreated topic has.

KEYS[1]  log        stream  removed
KEYS[2]  meta       hash    state = deleted; end: the log's end offset, absent if it could not be read
KEYS[3]  times      zset    removed
KEYS[4]  producers  hash    removed
KEYS[5]  owners     hash    removed
KEYS[6]  segments   zset    removed; the files remain until the pipeline's gc finds them unreferenced
KEYS[7]  archive    hash    removed
KEYS[8]  replayed   hash    removed
KEYS[9]  translations  zset  removed
KEYS[10] acknowledged  hash  removed
KEYS[11] readers    hash    removed
KEYS[12] writers    hash    removed
KEYS[13] staged     hash    removed
ARGV[1]  how long meta remains, ms
ARGV[2]  wake channel: gets "deleted"
Returns  {NONE}; safe to run twice
Errors   none
]]
-- @include lib/errors
-- @include lib/last_entry
local log, meta, times, producers, owners = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local segments, archive, replayed, translations, acknowledged = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local readers, writers, staged = KEYS[11], KEYS[12], KEYS[13]

local state, stop = unpack(redis.call("HMGET", meta, "state", "end"))
if state ~= "deleted" then
  local readable, _, found = pcall(last_entry, log, "+") -- a key of another type is deleted too
  stop = readable and string.format("%.0f", found or 0)
  redis.call("UNLINK", log)
end
redis.call("UNLINK", times, producers, owners, acknowledged, segments, archive, replayed, translations, meta)
redis.call("UNLINK", readers, writers, staged)
redis.call("HSET", meta, "state", "deleted")
if stop then redis.call("HSET", meta, "end", stop) end
redis.call("PEXPIRE", meta, ARGV[1])
redis.call("PUBLISH", ARGV[2], "deleted")
return { ERROR.NONE }
