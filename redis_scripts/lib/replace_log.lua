-- entries_after(log, id, limit): the entries above an id; nil if they are more than the limit, or one cannot be copied.
-- replace(log, copy, meta, entries, position): the copy, followed by the entries, becomes the log. Each Redis group
-- of the log is made in it, at position(its position in the log).
-- Reads log; `replace` writes log, copy and meta.
local replace_log = {}
local FIELDS_MAX = 7000 -- the limit of arguments that Lua can pass to one command

function replace_log.entries_after(log, id, limit)
  local entries = redis.call("XRANGE", log, "(" .. id, "+", "COUNT", limit + 1)
  if #entries > limit then return nil end
  for _, entry in ipairs(entries) do
    if #entry[2] > FIELDS_MAX then return nil end
  end
  return entries
end

function replace_log.replace(log, copy, meta, entries, position)
  for _, entry in ipairs(entries) do
    redis.call("XADD", copy, entry[1], unpack(entry[2]))
  end
  for _, group in ipairs(redis.call("EXISTS", log) == 1 and redis.call("XINFO", "GROUPS", log) or {}) do
    redis.call("XGROUP", "CREATE", copy, group[2], position and position(group[8]) or group[8])
  end
  redis.call("UNLINK", log)
  redis.call("RENAME", copy, log)
  redis.call("PERSIST", log)
  redis.call("HINCRBY", meta, "log_version", 1)
end
