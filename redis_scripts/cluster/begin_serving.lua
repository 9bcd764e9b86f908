#!lua flags=allow-oom
--[[ A broker is about to serve: whether generations may be lost that no broker remembers, and the end of a clean shutdown.

While `clean_shutdown` is a failover epoch, no broker serves: this makes it "starting", which a broker removes once the
disk has it. A crash before that brings the failover epoch back, and nothing was served since; one after it does not.

KEYS[1]  info  hash  clean_shutdown, groups_incarnation (the failover epoch whose losses are handled)
ARGV[1]  failover epoch of a broker that starts, or "" for one that remembers generations and whose lease had ended
Returns  {NONE, 1 if groups must skip generations, 1 if the caller must prove that the disk has this change};
         safe to run twice
Errors   none
]]
-- @include lib/errors
local info, failover_epoch = KEYS[1], ARGV[1]
local STARTING = "starting"

local mark, handled = unpack(redis.call("HMGET", info, "clean_shutdown", "groups_incarnation"))
if mark and mark ~= STARTING then
  redis.call("HSET", info, "clean_shutdown", STARTING)
  if failover_epoch ~= "" then redis.call("HSET", info, "groups_incarnation", failover_epoch) end
  return { ERROR.NONE, 0, 1 }
end
local is_behind = failover_epoch ~= "" and handled and handled ~= failover_epoch
return { ERROR.NONE, is_behind and 1 or 0, mark and 1 or 0 }
