-- The end offset of a log entry: after its last batch; nil if no broker appended it, or it is torn. Exact to 2^53.
-- `any_delta`: accept a batch whose header has a negative last offset delta; the caller must detect it.
local function entry_end(entry, any_delta)
  local offset, fields, batches = tonumber(string.match(entry[1], "^(%d+)%-1$")), entry[2] or {}, 0
  for i = 1, offset and #fields or 0, 2 do
    local batch = fields[i + 1]
    if fields[i] == "b" then
      if #batch < 61 or string.byte(batch, 17) ~= 2 then return nil end -- magic
      local a, b, c, d = string.byte(batch, 9, 12) -- length of the rest, int32
      if ((a * 256 + b) * 256 + c) * 256 + d + 12 ~= #batch then return nil end
      a, b, c, d = string.byte(batch, 24, 27) -- last_offset_delta, int32
      if a > 127 and not any_delta then return nil end
      offset, batches = offset + ((a * 256 + b) * 256 + c) * 256 + d + 1, batches + 1
    elseif fields[i] ~= "w" then
      return nil
    end
  end
  if batches > 0 then return offset end
end
