-- The last id that a stream ever assigned, even if its entry is deleted; 0-0 for a user without XINFO rights. Reads it.
local function last_id(stream)
  local info = redis.pcall("XINFO", "STREAM", stream)
  for i = 1, #info, 2 do
    if info[i] == "last-generated-id" then return info[i + 1] end
  end
  return "0-0"
end
