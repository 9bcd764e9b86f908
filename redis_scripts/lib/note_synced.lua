-- note_synced(group, member_id, record): the member synced in this generation; the last one ends the sync barrier. If the
-- member is the leader, its assignments are stored first. Writes the member's record.
-- @include lib/state
-- @include lib/add_event
local function note_synced(group, member_id, record)
  local synced = string.format(MEMBER.SYNCED, group.generation)
  if record:find(synced, 1, true) then return end
  redis.call("HSET", group.keys.members, member_id, (record:gsub(MEMBER.ANY_SYNCED, synced, 1)))
  state.put(group, "awaiting_sync", group.awaiting_sync - 1)
  if group.awaiting_sync == 0 then
    state.put(group, "sync_deadline", 0)
    state.touch(group)
    if group.state == STATE.STABLE then add_event(group, "stable") end
  end
end
