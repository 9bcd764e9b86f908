-- Where an entry of the log ends: after its last batch. Exact to 2^53.
local function entry_end(entry)
  local offset, fields = tonumber(string.match(entry[1], "^%d+")), entry[2]
  for i = 1, #fields, 2 do
    if fields[i] == "b" then
      local a, b, c, d = string.byte(fields[i + 1], 24, 27) -- last_offset_delta, int32
      offset = offset + ((a * 256 + b) * 256 + c) * 256 + d + 1
    end
  end
  return offset
end
