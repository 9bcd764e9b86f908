#!lua flags=no-writes
--[[ Read a stream of format `record`: its ends, and how many entries follow each of some positions.

Offsets have gaps, so entries are counted, by what Redis itself counts: all entries below the first one's id, none at the
end; where a Redis group stands at the position, the entries that it has not read (`lag` of XINFO GROUPS) and those that
await its acknowledgement. Elsewhere up to COUNT_MAX entries are counted, and the share of the rest follows from the ids.

KEYS[1]  records  stream
KEYS[2]  meta     hash    state, log_start, last_id
ARGV[1]  and on: ids before the positions
Returns  {NONE, log start, last id, first id, bytes in Redis, now, {ms of the entry after each position or -1},
         {entries after each position}}; running twice changes nothing
Errors   UNKNOWN_TOPIC_OR_PARTITION  deleted
]]
-- @include lib/errors
-- @include lib/now_ms
-- @include lib/stream_ids
local records, meta = KEYS[1], KEYS[2]
local COUNT_MAX = 1000

local state, log_start, appended = unpack(redis.call("HMGET", meta, "state", "log_start", "last_id"))
if state ~= "ready" then return { ERROR.UNKNOWN_TOPIC_OR_PARTITION } end
local last_id, length, _, first_id = unpack(stream_ids.stream_end(records) or { "0-0", 0, 0, "0-0" })

local function ms_of(id) return tonumber(string.match(id, "^%d+")) end

-- What the groups say: the id of the next entry that each has not acknowledged -> entries from there on.
local function counted_by_groups()
  local counts, groups = {}, length > 0 and redis.call("XINFO", "GROUPS", records) or {}
  for _, one in ipairs(groups) do
    local found = {}
    for i = 1, #one, 2 do found[one[i]] = one[i + 1] end
    if found["lag"] then
      local pending = redis.call("XPENDING", records, found["name"])
      local next_id = pending[2]
      if pending[1] == 0 then
        local following = redis.call("XRANGE", records, "(" .. found["last-delivered-id"], "+", "COUNT", 1)[1]
        next_id = following and following[1]
      end
      if next_id then counts[next_id] = found["lag"] + pending[1] end
    end
  end
  return counts
end

local by_groups = counted_by_groups()

local function count_from(following)
  if not following then return 0 end
  if following == first_id then return length end
  if by_groups[following] then return by_groups[following] end
  local entries = redis.call("XRANGE", records, following, "+", "COUNT", COUNT_MAX)
  if #entries < COUNT_MAX then return #entries end
  local share = (ms_of(last_id) - ms_of(following)) / math.max(ms_of(last_id) - ms_of(first_id), 1)
  return math.max(COUNT_MAX, math.floor(length * share))
end

local times, counts = {}, {}
for i, before in ipairs(ARGV) do
  local following = redis.call("XRANGE", records, "(" .. before, "+", "COUNT", 1)[1]
  following = following and following[1]
  times[i] = following and ms_of(following) or -1
  counts[i] = count_from(following)
end
return { ERROR.NONE, log_start, stream_ids.higher_id(last_id, appended), first_id, length > 0 and redis.call("MEMORY", "USAGE", records) or 0, now_ms(), times, counts }
