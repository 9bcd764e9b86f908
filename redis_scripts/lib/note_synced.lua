-- A member's sync of this generation came; with the last of them nobody is waited for any more. Where that is the
-- leader, its assignments are stored first.
local function note_synced(member)
  if member.sync_generation == g.generation then return end
  member.sync_generation = g.generation
  redis.call("HSET", members, member_id, pack_member(member))
  put("awaiting_sync", g.awaiting_sync - 1)
  if g.awaiting_sync == 0 then
    put("sync_deadline", 0)
    touch()
    if g.state == STABLE then event("stable") end
  end
end
