#!lua flags=no-writes
--[[ Read entries of a stream of format `record` from an id on, and the stream's end.

KEYS[1]  records  stream
KEYS[2]  meta     hash    state, log_start, last_id
ARGV[1]  first id
ARGV[2]  limit of entries
ARGV[3]  limit of bytes; the first entry may have more
Returns  {NONE, log start, last id of the stream or, where that was deleted, of the last append, entries};
         running twice changes nothing
Errors   UNKNOWN_TOPIC_OR_PARTITION  deleted
]]
-- @include lib/errors
-- @include lib/stream_ids
-- @include lib/entries_within
local records, meta, count = KEYS[1], KEYS[2], tonumber(ARGV[2])

local state, log_start, appended = unpack(redis.call("HMGET", meta, "state", "log_start", "last_id"))
if state ~= "ready" then return { ERROR.UNKNOWN_TOPIC_OR_PARTITION } end
local entries = redis.call("XRANGE", records, ARGV[1], "+", "COUNT", count)
local last_id = "0-0"
if #entries > 0 and #entries < count then
  last_id = entries[#entries][1]
else
  local found = stream_ids.stream_end(records)
  last_id = stream_ids.higher_id(found and found[1] or last_id, appended)
end
for i = #entries, entries_within(entries, tonumber(ARGV[3])) + 1, -1 do entries[i] = nil end
return { ERROR.NONE, log_start, last_id, entries }
