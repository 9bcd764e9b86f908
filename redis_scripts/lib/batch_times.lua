-- The times of a record batch, ms, from its header: of its first record, and the largest; -1 for none. If the
-- broker stamped the batch (LogAppendTime, bit 3 of the attributes), all of its records have the largest time. If it
-- was compacted and has tombstones (bit 6), the header has the time of their removal in place of the first record's.
-- Reads and writes no key.
local batch_times = {}

local function time_at(batch, first)
  local a, b, c, d, e, f, g, h = string.byte(batch, first, first + 7)
  if not h or a > 127 then return -1 end
  return (((a * 256 + b) * 256 + c) * 256 + d) * 4294967296 + ((e * 256 + f) * 256 + g) * 256 + h
end

function batch_times.largest(batch)
  return time_at(batch, BATCH.MAX_TIMESTAMP)
end

function batch_times.first(batch)
  local attributes = string.byte(batch, BATCH.LOW_ATTRIBUTES)
  local is_log_append_time = math.floor(attributes / 8) % 2 == 1
  local has_delete_horizon = math.floor(attributes / 64) % 2 == 1
  return time_at(batch, (is_log_append_time or has_delete_horizon) and BATCH.MAX_TIMESTAMP or BATCH.FIRST_TIMESTAMP)
end
