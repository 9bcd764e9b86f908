#!lua flags=allow-oom
--[[ Read entries for the member of a group that owns the partition, as a Redis consumer: XREADGROUP.

The Redis group is created where the member wants to read, if it does not exist. It is moved there with XGROUP SETID, if
it stands elsewhere: the member has sought, or a new owner begins at the committed offset. A new owner first gets all
that is pending for others. A commit whose acknowledgement was lost is acknowledged.
Exactly the entries that are returned become pending.

KEYS[1]  records  stream
KEYS[2]  meta     hash    state, log_start, last_id
KEYS[3]  owners   hash    group -> JSON of the partition's owner
KEYS[4]  readers  hash    group -> the owner's record when it read last
ARGV[1]  group
ARGV[2]  the owner's record that the caller has read
ARGV[3]  member
ARGV[4]  id before the first one wanted
ARGV[5]  limit of entries
ARGV[6]  limit of bytes; the first entry may have more
ARGV[7]  id before the committed offset, at a broker's first read for this owner; otherwise 0-0
Returns  {NONE, log start, last id of the stream or, where that was deleted, of the last append, entries};
         running twice delivers the same entries again
Errors   ILLEGAL_GENERATION          the owner has changed
         UNKNOWN_TOPIC_OR_PARTITION  deleted
]]
-- @include lib/errors
-- @include lib/stream_ids
-- @include lib/entries_within
-- @include lib/record_group
local records, meta, owners, readers = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local group, owner, member, before = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local count, bytes_max, committed = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]

-- With ENTRIESREAD Redis counts the group's lag; the number is known below the first entry and at the end only.
local function stand(...)
  local last_id, length, added, first = unpack(stream_ids.stream_end(records) or { "0-0", 0, 0, "0-0" })
  local read
  if not stream_ids.is_above(last_id, before) then
    read = added
  elseif stream_ids.is_above(first, before) then
    read = added - length
  end
  local command = { "XGROUP", ... }
  if read then
    command[#command + 1] = "ENTRIESREAD"
    command[#command + 1] = read
  end
  redis.call(unpack(command))
  return read
end

local function take_over()
  local cursor = "0-0"
  redis.call("XGROUP", "CREATECONSUMER", records, group, member)
  repeat
    cursor = redis.call("XAUTOCLAIM", records, group, member, 0, cursor, "COUNT", 1000, "JUSTID")[1]
  until cursor == "0-0"
  for _, consumer in ipairs(redis.call("XINFO", "CONSUMERS", records, group)) do
    if consumer[2] ~= member then redis.call("XGROUP", "DELCONSUMER", records, group, consumer[2]) end
  end
  redis.call("HSET", readers, group, owner)
end

-- What is beyond the bytes is not delivered: the group stands before it again.
local function give_back(entries, kept, read)
  if read then
    redis.call("XGROUP", "SETID", records, group, entries[kept][1], "ENTRIESREAD", read + kept)
  else
    redis.call("XGROUP", "SETID", records, group, entries[kept][1])
  end
  for first = kept + 1, #entries, 1000 do
    local ids = {}
    for i = first, math.min(first + 999, #entries) do ids[#ids + 1] = entries[i][1] end
    redis.call("XACK", records, group, unpack(ids))
  end
  for i = #entries, kept + 1, -1 do entries[i] = nil end
end

local state, log_start, appended = unpack(redis.call("HMGET", meta, "state", "log_start", "last_id"))
if state ~= "ready" then return { ERROR.UNKNOWN_TOPIC_OR_PARTITION } end
if redis.call("HGET", owners, group) ~= owner then return { ERROR.ILLEGAL_GENERATION } end

local position, read = record_group.position(records, group)
if not position then
  read = stand("CREATE", records, group, before, "MKSTREAM")
elseif record_group.differs(records, position, before) then
  read = stand("SETID", records, group, before)
end
if redis.call("HGET", readers, group) ~= owner then take_over() end
if committed ~= "0-0" then record_group.acknowledge_until(records, group, committed) end

local reply = redis.call("XREADGROUP", "GROUP", group, member, "COUNT", count, "STREAMS", records, ">")
local entries = reply and reply[1] and reply[1][2] or {}
local last_id = #entries > 0 and #entries < count and entries[#entries][1]
  or stream_ids.higher_id(stream_ids.stream_end(records)[1], appended)
if #entries > 0 then
  local kept = entries_within(entries, bytes_max)
  if kept < #entries then give_back(entries, kept, read) end
end
return { ERROR.NONE, log_start, last_id, entries }
