-- is_still_overdue(member_id, now, sessions, revocations): whether a member whose expiry was decided is to be removed. Its
-- session may have been extended since the broker learned that it had ended (a session grace, an outage), which does not
-- change the group's version. Reads sessions and revocations (zsets, member id -> deadline, ms; share groups have no
-- revocations). Writes nothing.
local function is_still_overdue(member_id, now, sessions, revocations)
  local session_end = redis.call("ZSCORE", sessions, member_id)
  if not session_end or tonumber(session_end) <= now then return true end
  local revocation_end = revocations and redis.call("ZSCORE", revocations, member_id)
  return revocation_end and tonumber(revocation_end) <= now
end
