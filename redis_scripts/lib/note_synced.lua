-- Record a member's sync of this generation; the last one ends the sync barrier. If the member is the leader, its
-- assignments are stored first.
local SYNC_GENERATION = '"sync_generation":%d+,'

local function note_synced(record)
  local synced = string.format('"sync_generation":%.0f,', g.generation)
  if record:find(synced, 1, true) then return end
  redis.call("HSET", members, member_id, (record:gsub(SYNC_GENERATION, synced, 1)))
  put(g, "awaiting_sync", g.awaiting_sync - 1)
  if g.awaiting_sync == 0 then
    put(g, "sync_deadline", 0)
    touch()
    if g.state == STABLE then event("stable") end
  end
end
