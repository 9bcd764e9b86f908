-- find_member(group, member_id, instance_id): the record of a member that owns its instance; or nil and the error. The
-- instance is checked before the membership (spec P1). Reads instances and members.
-- @include lib/errors
local function find_member(group, member_id, instance_id)
  if instance_id ~= "" then
    local owner = redis.call("HGET", group.keys.instances, instance_id)
    if not owner then return nil, ERROR.UNKNOWN_MEMBER_ID end
    if owner ~= member_id then return nil, ERROR.FENCED_INSTANCE_ID end
  end
  local record = redis.call("HGET", group.keys.members, member_id)
  if not record then return nil, ERROR.UNKNOWN_MEMBER_ID end
  return record
end
