#!lua flags=no-writes
--[[ Read from a log which transactions begin and end: of the batches of transactions only producer, offset and kind.

Of several batches of a producer before its marker the first is reported, in each call. A call ends after ARGV[2] bytes
of entries; the caller continues from the returned offset.

KEYS[1]  log   stream
KEYS[2]  meta  hash  state, log_start
ARGV[1]  base offset of the first entry to read, or above that of the one before
ARGV[2]  bytes of entries after which this call ends, at most 8 MiB
Returns  {NONE, log start, base offset of the first entry read or -1, next offset, 1 at the end of the log,
         {offset, producer id, kind, ...}}; kinds: 0 records, 1 commit, 2 abort; safe to run twice
Errors   UNKNOWN_TOPIC_OR_PARTITION  deleted, or never created
]]
-- @include lib/errors
-- @include lib/entry_end
local log, meta, start = KEYS[1], KEYS[2], tonumber(ARGV[1])
local READ_BYTES_MAX, PAGE = math.min(tonumber(ARGV[2]), 8 * 1024 * 1024), 64
local RECORDS, COMMIT, ABORT = 0, 1, 2
local TRANSACTIONAL, CONTROL = 16, 32

local function number(text, at, count)
  local value = 0
  for i = at, at + count - 1 do value = value * 256 + string.byte(text, i) end
  return value
end

local function behind_varint(text, at)
  while (string.byte(text, at) or 0) > 127 do at = at + 1 end
  return at + 1
end

-- The key of a marker's record: version and type, int16 each.
local function kind_of_marker(batch)
  local at = behind_varint(batch, BATCH.HEADER_BYTES + 1) + 1
  at = behind_varint(batch, behind_varint(batch, behind_varint(batch, at)))
  return string.byte(batch, at + 3) == 1 and COMMIT or ABORT
end

local state, log_start = unpack(redis.call("HMGET", meta, "state", "log_start"))
if state ~= "ready" then return { ERROR.UNKNOWN_TOPIC_OR_PARTITION } end

local found, begun, bytes, first, at_end = {}, {}, 0, -1, 0
local function note(batch, base)
  local attributes = string.byte(batch, BATCH.LOW_ATTRIBUTES)
  if attributes % (2 * TRANSACTIONAL) < TRANSACTIONAL then return end
  local producer_id = string.format("%.0f", number(batch, BATCH.PRODUCER_ID, 8))
  local kind = attributes % (2 * CONTROL) < CONTROL and RECORDS or kind_of_marker(batch)
  if kind == RECORDS and begun[producer_id] then return end
  begun[producer_id] = kind == RECORDS or nil
  found[#found + 1], found[#found + 2], found[#found + 3] = base, tonumber(producer_id), kind
end

local from = string.format("%.0f-0", start)
while at_end == 0 and bytes < READ_BYTES_MAX do
  local entries = redis.call("XRANGE", log, from, "+", "COUNT", PAGE)
  for _, entry in ipairs(entries) do
    local stop = entry_end(entry)
    if stop then
      local base = tonumber(string.match(entry[1], "^%d+"))
      if first < 0 then first = base end
      for i = 1, #entry[2], 2 do
        if entry[2][i] == "b" then
          local batch = entry[2][i + 1]
          note(batch, base)
          base, bytes = base + number(batch, BATCH.LAST_OFFSET_DELTA, 4) + 1, bytes + #batch
        end
      end
      start = stop
    end
    from = "(" .. entry[1]
  end
  if #entries < PAGE then at_end = 1 end
end
return { ERROR.NONE, tonumber(log_start), first, start, at_end, found }
