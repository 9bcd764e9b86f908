#!lua flags=allow-oom
--[[ Raise the log start and the local start offset, and remove a slice of the entries wholly below the latter.

The log start applies to Redis and the archive together; from the local start on, Redis holds the log. Only the archive
holds the offsets between them, so above the log start the local start rises only over archived offsets. The script
checks this, so that nothing is lost if the archive was reset.
The last entry is never removed (only it shows where the log ends), nor the one that contains the local start.
Whole nodes of the stream are removed; the local start hides the entries left below it.

KEYS[1]  log        stream
KEYS[2]  meta       hash  state, log_start, local_start, bytes, cleaned_bytes; recount: the local start when
                          bytes was estimated, until retention counts the log
KEYS[3]  times      zset  base offset, 19 digits -> largest timestamp
KEYS[4]  producers  hash  offset of the snapshot, which the local start never exceeds
KEYS[5]  archive    hash  start, end
ARGV[1]  log start offset
ARGV[2]  local start offset; the log start applies if that is higher
ARGV[3]  limit of entries removed
ARGV[4]  bytes that the caller counted below the new local start
ARGV[5]  wake channel: gets "trimmed"
ARGV[6]  1 if the bytes are an estimate
Returns  {NONE, log start offset, local start offset, entries removed}; safe to run twice
Errors   UNKNOWN_TOPIC_OR_PARTITION  deleted
         OFFSET_OUT_OF_RANGE         above the snapshot: write the snapshot first; or above what is archived
]]
-- @include lib/errors
-- @include lib/last_entry
local log, meta, times, producers, archive = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]

local state, known_start, known_local, cleaned_bytes =
  unpack(redis.call("HMGET", meta, "state", "log_start", "local_start", "cleaned_bytes"))
if state ~= "ready" then return { ERROR.UNKNOWN_TOPIC_OR_PARTITION } end
known_local = math.max(tonumber(known_start), tonumber(known_local or 0))
local log_start = math.max(tonumber(known_start), tonumber(ARGV[1]))
local local_start = math.max(known_local, log_start, tonumber(ARGV[2]))

if local_start > known_local then
  if local_start > tonumber(redis.call("HGET", producers, "offset") or 0) then return { ERROR.OFFSET_OUT_OF_RANGE } end
  if local_start > log_start then
    local first, stop = unpack(redis.call("HMGET", archive, "start", "end"))
    local archived = first and tonumber(first) <= math.max(known_local, log_start) and tonumber(stop) >= local_start
    if not archived then return { ERROR.OFFSET_OUT_OF_RANGE } end
  end
  redis.call("HINCRBY", meta, "bytes", string.format("%.0f", 0 - tonumber(ARGV[4])))
  if ARGV[6] == "1" then redis.call("HSET", meta, "recount", string.format("%.0f", local_start)) end
  if cleaned_bytes then -- the compacted part is the first one
    redis.call("HSET", meta, "cleaned_bytes", string.format("%.0f", math.max(tonumber(cleaned_bytes) - tonumber(ARGV[4]), 0)))
  end
end
if local_start > known_local or log_start > tonumber(known_start) then
  redis.call("HSET", meta, "log_start", string.format("%.0f", log_start), "local_start", string.format("%.0f", local_start))
  redis.call("PUBLISH", ARGV[5], "trimmed")
end

local removed = 0
local holder = last_entry(log, string.format("%.0f-1", local_start))
if holder then removed = redis.call("XTRIM", log, "MINID", "~", holder[1], "LIMIT", ARGV[3]) end
if removed > 0 then
  for _, base in ipairs(redis.call("ZRANGE", times, 0, 99)) do
    if tonumber(base) >= local_start then break end
    redis.call("ZREM", times, base)
  end
end
return { ERROR.NONE, log_start, local_start, removed }
