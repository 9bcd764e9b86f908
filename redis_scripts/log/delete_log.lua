#!lua flags=allow-oom
--[[ Remove one partition's data; its meta is `deleted` for a while, so that a late write cannot recreate the log.

KEYS[1]  log        stream  removed
KEYS[2]  meta       hash    state = deleted, and nothing else
KEYS[3]  times      zset    removed
KEYS[4]  producers  hash    removed
KEYS[5]  owners     hash    removed
KEYS[6]  segments   zset    removed; the files remain until the pipeline's gc finds them unreferenced
KEYS[7]  archive    hash    removed
KEYS[8]  replayed   hash    removed
KEYS[9]  translations  zset  removed
KEYS[10] acknowledged  hash  removed
ARGV[1]  how long meta remains, ms
ARGV[2]  wake channel: gets "deleted"
Returns  {NONE}; safe to run twice
Errors   none
]]
-- @include lib/errors
local log, meta, times, producers, owners = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local segments, archive, replayed, translations, acknowledged = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]

redis.call("UNLINK", log, times, producers, owners, acknowledged, segments, archive, replayed, translations, meta)
redis.call("HSET", meta, "state", "deleted")
redis.call("PEXPIRE", meta, ARGV[1])
redis.call("PUBLISH", ARGV[2], "deleted")
return { ERROR.NONE }
