-- The last entry of a log at or below an id, and where it ends; nil for none. Passes over what no broker appended: a
-- stream with more such entries than a person types is no log any more, and gets an error.
-- @include lib/entry_end
local STRAYS_MAX = 10000

local function last_entry(log, id)
  local page, strays = 1, 0
  while true do
    local entries = redis.call("XREVRANGE", log, id, "-", "COUNT", page)
    for _, entry in ipairs(entries) do
      local stop = entry_end(entry)
      if stop then return entry, stop end
    end
    strays = strays + #entries
    if #entries < page then return nil end
    if strays > STRAYS_MAX then error("more than " .. STRAYS_MAX .. " entries of " .. log .. " are not of a log") end
    id, page = "(" .. entries[#entries][1], 100
  end
end
