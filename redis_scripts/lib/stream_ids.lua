-- stream_end(log): {last generated id, length, entries added, first id or "0-0"} of a stream; nil if there is none.
-- is_above(id, other): whether a stream id is above another; ids are texts, sequences may exceed 2^53.
-- higher_id(id, other): the higher one of two ids, of which the second may be nil or false. Reads the stream.
local stream_ids = {}

function stream_ids.stream_end(log)
  if redis.call("EXISTS", log) == 0 then return nil end
  local info, found = redis.call("XINFO", "STREAM", log), {}
  for i = 1, #info, 2 do found[info[i]] = info[i + 1] end
  local first = found["first-entry"] and found["first-entry"][1] or "0-0"
  return { found["last-generated-id"], found["length"], found["entries-added"], first }
end

function stream_ids.is_above(id, other)
  local ms, sequence = string.match(id, "^(%d+)-(%d+)$")
  local other_ms, other_sequence = string.match(other, "^(%d+)-(%d+)$")
  if #ms ~= #other_ms then return #ms > #other_ms end
  if ms ~= other_ms then return ms > other_ms end
  if #sequence ~= #other_sequence then return #sequence > #other_sequence end
  return sequence > other_sequence
end

function stream_ids.higher_id(id, other)
  if other and stream_ids.is_above(other, id) then return other end
  return id
end
