-- entries_within(entries, bytes_max): how many of the entries have at most so many bytes together, at least 1 of any.
-- Reads and writes no key.
local ENTRY_BYTES = 16

local function entries_within(entries, bytes_max)
  local size = 0
  for i, entry in ipairs(entries) do
    size = size + ENTRY_BYTES
    for _, text in ipairs(entry[2]) do size = size + #text end
    if size > bytes_max and i > 1 then return i - 1 end
  end
  return #entries
end
