#!lua flags=allow-oom
--[[ Use each permission that the product needs once, so that missing rights show at the start.

A log compares and sets by the ids that it gives to its stream's entries: the server must take them, and each once. A
database that resolves conflicts afterwards (Active-Active) does not.

KEYS[1]  probe  string  written and removed; then a stream, removed too
ARGV[1]  channel that a message is sent to
Returns  {NONE, 1}, or {NONE, 0} if the server took an id twice; safe to run twice
Errors   none
]]
-- @include lib/errors
-- @include lib/now_ms
redis.call("SET", KEYS[1], string.format("%.0f", now_ms()), "PX", 1000)
redis.call("UNLINK", KEYS[1])
redis.call("XADD", KEYS[1], "5-1", "probe", "1")
local again = redis.pcall("XADD", KEYS[1], "5-1", "probe", "2")
redis.call("UNLINK", KEYS[1])
redis.call("PUBLISH", ARGV[1], "")
return { ERROR.NONE, again.err and 1 or 0 }
