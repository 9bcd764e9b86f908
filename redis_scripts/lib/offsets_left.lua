-- After offsets were deleted on purpose: without any left, their absence is no loss (see `groups/commit_offsets`).
local function note_offsets_left()
  if redis.call("EXISTS", offsets) == 0 then redis.call("HDEL", group, "has_offsets") end
end
