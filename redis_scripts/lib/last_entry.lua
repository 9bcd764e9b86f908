-- The last entry of a log at or below an id, its end offset, and the id of the last entry that no broker appended if
-- that is later; nil for none. A stream with many such entries is not treated as a log any more: error.
-- Reads log.
-- @include lib/entry_end
local STRAYS_MAX = 10000

local function last_entry(log, id)
  local page, strays, last_stray = 1, 0, nil
  while true do
    local entries = redis.call("XREVRANGE", log, id, "-", "COUNT", page)
    for _, entry in ipairs(entries) do
      local stop = entry_end(entry)
      if stop then return entry, stop, last_stray end
      last_stray = last_stray or entry[1]
    end
    strays = strays + #entries
    if #entries < page then return nil, nil, last_stray end
    if strays > STRAYS_MAX then error("more than " .. STRAYS_MAX .. " entries of " .. log .. " are not of a log") end
    id, page = "(" .. entries[#entries][1], 100
  end
end
