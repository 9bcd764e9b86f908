-- Note in a group's offsets which partitions have staged offsets, so that OffsetFetch finds both with one command.
local function note_unstable(offsets, staged, now_text)
  local partitions, noted = {}, {}
  for _, name in ipairs(redis.call("HKEYS", staged)) do
    local partition = name:match("^%d+:(.+)$")
    if partition and not noted[partition] then
      noted[partition] = true
      partitions[#partitions + 1] = partition
    end
  end
  if #partitions == 0 then return redis.call("HDEL", offsets, ":-1") end
  redis.call("HSET", offsets, ":-1", '{"offset":-1,"leader_epoch":-1,"topic_id":"","metadata":"'
    .. table.concat(partitions, " ") .. '","commit_time":' .. now_text .. "}")
end
