#!lua flags=allow-oom
--[[ End a restore: brokers may start.

KEYS[1]  info  hash  restoring
ARGV[1]  checksum of the backup
Returns  {NONE}; safe to run twice
Errors   none
]]
-- @include lib/errors
if redis.call("HGET", KEYS[1], "restoring") == ARGV[1] then redis.call("HDEL", KEYS[1], "restoring") end
return { ERROR.NONE }
