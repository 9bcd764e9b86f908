#!lua flags=allow-oom
--[[ Use each permission that the product needs once, so that missing rights show at the start.

KEYS[1]  probe  string  written and removed
ARGV[1]  channel that a message is sent to
Returns  {NONE}; safe to run twice
Errors   none
]]
-- @include lib/errors
-- @include lib/now_ms
redis.call("SET", KEYS[1], string.format("%.0f", now_ms()), "PX", 1000)
redis.call("UNLINK", KEYS[1])
redis.call("PUBLISH", ARGV[1], "")
return { ERROR.NONE }
