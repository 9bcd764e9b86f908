-- Whether this is a member, and the owner of its instance. The instance is checked before the membership (spec P1).
local function record_of(member_id, instance_id)
  if instance_id ~= "" then
    local owner = redis.call("HGET", instances, instance_id)
    if not owner then return nil, ERROR.UNKNOWN_MEMBER_ID end
    if owner ~= member_id then return nil, ERROR.FENCED_INSTANCE_ID end
  end
  local record = redis.call("HGET", members, member_id)
  if not record then return nil, ERROR.UNKNOWN_MEMBER_ID end
  return record
end
