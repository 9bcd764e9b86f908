#!lua flags=allow-oom
--[[ Create, replace or delete a user's record, if it is still what the change was planned on.

A full server accepts it too: a leaked password must be replaceable then.

KEYS[1]  users  hash  name -> JSON of the organisation and the SCRAM credentials
ARGV[1]  channel of changes to users
ARGV[2]  name
ARGV[3]  the record that the change was planned on; empty: there was none
ARGV[4]  the new record; empty: delete it
Returns  {NONE, 1}, or {NONE, 0} if the record has changed: read it and plan again; a repeat gets 1
Errors   none
]]
-- @include lib/errors
local users = KEYS[1]
local channel, name, planned_on, record = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local stored = redis.call("HGET", users, name) or ""
if stored == record then return { ERROR.NONE, 1 } end
if stored ~= planned_on then return { ERROR.NONE, 0 } end
if record == "" then
  redis.call("HDEL", users, name)
else
  redis.call("HSET", users, name, record)
end
redis.call("PUBLISH", channel, name)
return { ERROR.NONE, 1 }
