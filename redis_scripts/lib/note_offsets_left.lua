-- note_offsets_left(group_key, offsets_key): after offsets were deleted on purpose. Without any left, their absence is no
-- loss (see `groups/commit_offsets`). Reads offsets; writes the group.
local function note_offsets_left(group_key, offsets_key)
  if redis.call("EXISTS", offsets_key) == 0 then redis.call("HDEL", group_key, "has_offsets") end
end
