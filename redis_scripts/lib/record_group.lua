-- position(log, group): the last delivered id of a Redis group, and the entries that it has read if Redis knows
-- their number; nil if there is no such group or stream.
-- acknowledge_until(log, group, id): XACK every pending entry up to an id; returns how many.
-- differs(log, id, other): whether an entry is between two ids, so that groups at them read differently.
-- Reads the log; writes its Redis group.
-- @include lib/stream_ids
local record_group = {}

function record_group.position(log, group)
  local groups = redis.pcall("XINFO", "GROUPS", log)
  if groups.err then return nil end
  for _, one in ipairs(groups) do
    local found = {}
    for i = 1, #one, 2 do found[one[i]] = one[i + 1] end
    if found["name"] == group then return found["last-delivered-id"], found["entries-read"] end
  end
end

function record_group.acknowledge_until(log, group, id)
  local total = 0
  while true do
    local pending, ids = redis.call("XPENDING", log, group, "-", id, 1000), {}
    for i, one in ipairs(pending) do ids[i] = one[1] end
    if #ids == 0 then return total end
    total = total + redis.call("XACK", log, group, unpack(ids))
  end
end

function record_group.differs(log, id, other)
  if id == other then return false end
  local low, high = id, other
  if stream_ids.is_above(id, other) then
    low, high = other, id
  end
  return #redis.call("XRANGE", log, "(" .. low, high, "COUNT", 1) > 0
end
