-- Rebuild the meta of a log that exists without it: a key was deleted by hand, as a topic's deletion leaves its meta.
-- Leader epochs are lost: all present records count as epoch 0, which truncates no reader, and the caller's fence begins
-- a new one. The log version differs from each earlier one, so that every broker loads the log again.
-- Reads log and archive; writes meta.
-- @include lib/entry_end
-- @include lib/now_ms
local SAMPLE = 100

local function first_base(log)
  for _, entry in ipairs(redis.call("XRANGE", log, "-", "+", "COUNT", SAMPLE)) do
    if entry_end(entry) then return tonumber(string.match(entry[1], "^%d+")) end
  end
end

local function estimated_bytes(log)
  local sampled, bytes = redis.call("XREVRANGE", log, "+", "-", "COUNT", SAMPLE), 0
  for _, entry in ipairs(sampled) do
    for i = 2, #entry[2], 2 do bytes = bytes + #entry[2][i] end
  end
  return #sampled > 0 and bytes / #sampled * redis.call("XLEN", log) or 0
end

local function rebuild_meta(log, meta, archive)
  local local_start = first_base(log) or 0
  local log_start, start, stop = local_start, unpack(redis.call("HMGET", archive, "start", "end"))
  if start and tonumber(stop) >= local_start then log_start = math.min(tonumber(start), local_start) end
  redis.call("HSET", meta, "state", "ready", "log_start", string.format("%.0f", log_start),
    "local_start", string.format("%.0f", local_start), "epochs", "0:0", "log_version", string.format("%.0f", now_ms()),
    "bytes", string.format("%.0f", estimated_bytes(log)), "batches", redis.call("XLEN", log))
end
