-- Note in a group's offsets which partitions have staged offsets, so that OffsetFetch finds both with one command.
-- Reads staged; writes offsets.
local function note_unstable(offsets, staged, now_text)
  local partitions, noted = {}, {}
  for _, name in ipairs(redis.call("HKEYS", staged)) do
    local partition = name:match("^%d+:(.+)$")
    if partition and not noted[partition] then
      noted[partition] = true
      partitions[#partitions + 1] = partition
    end
  end
  if #partitions == 0 then return redis.call("HDEL", offsets, OFFSET.UNSTABLE) end
  local noted_text = string.format(OFFSET.UNSTABLE_RECORD, table.concat(partitions, " "), now_text)
  redis.call("HSET", offsets, OFFSET.UNSTABLE, noted_text)
end
