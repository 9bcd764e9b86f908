-- The end offset of a log entry: after its last batch; nil if no broker appended it, or it is torn. Exact to 2^53.
-- `any_delta`: accept a batch whose header has a negative last offset delta; the caller must detect it.
-- Reads and writes no key.
local function entry_end(entry, any_delta)
  local offset, fields, batches = tonumber(string.match(entry[1], "^(%d+)%-1$")), entry[2] or {}, 0
  for i = 1, offset and #fields or 0, 2 do
    local batch = fields[i + 1]
    if fields[i] == "b" then
      if #batch < BATCH.HEADER_BYTES or string.byte(batch, BATCH.MAGIC) ~= 2 then return nil end
      local a, b, c, d = string.byte(batch, BATCH.LENGTH, BATCH.LENGTH + 3)
      if ((a * 256 + b) * 256 + c) * 256 + d + BATCH.BEFORE_LENGTH_ENDS ~= #batch then return nil end
      a, b, c, d = string.byte(batch, BATCH.LAST_OFFSET_DELTA, BATCH.LAST_OFFSET_DELTA + 3)
      if a > 127 and not any_delta then return nil end
      offset, batches = offset + ((a * 256 + b) * 256 + c) * 256 + d + 1, batches + 1
    elseif fields[i] ~= "w" then
      return nil
    end
  end
  if batches > 0 then return offset end
end
