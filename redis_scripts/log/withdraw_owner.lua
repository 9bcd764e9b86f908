#!lua flags=allow-oom
--[[ Forget the owner of a partition in a group, because several clients read as it: from now on the mirror shows what the
group has committed, and nothing as pending, until a later generation has an owner.

KEYS[1]  log           stream
KEYS[2]  owners        hash    group -> the partition's owner (JSON)
KEYS[3]  acknowledged  hash    group -> its last committed offset, the group's own id if known
ARGV[1]  group: the mirror's name
ARGV[2]  the owner's record that the caller has read
Returns  {NONE, 1}, or {NONE, 0} if the group has another owner meanwhile; safe to run twice
Errors   none
]]
-- @include lib/errors
-- @include lib/entry_end
local log, owners, acknowledged, group, record = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2]

if redis.call("HGET", owners, group) ~= record then return { ERROR.NONE, 0 } end
redis.call("HDEL", owners, group)
redis.pcall("XGROUP", "DESTROY", log, group)
local offset, id = string.match(redis.call("HGET", acknowledged, group) or "", "^(%d+) (.*)$")
if offset and (id == "" or id == string.match(record, '^{"id":"([^"]*)"')) then
  local position = offset .. "-0"
  local holder = redis.call("XREVRANGE", log, position, "-", "COUNT", 1)[1]
  if holder and (entry_end(holder) or 0) > tonumber(offset) then position = string.gsub(holder[1], "-1$", "-0") end
  redis.pcall("XGROUP", "CREATE", log, group, position)
end
return { ERROR.NONE, 1 }
