#!lua flags=allow-oom
--[[ Add an entry to the stream of administrators' actions. Its time is by our clock; its id is by the server's.

A full server accepts it too, because actions that free memory must be recorded as well.

KEYS[1]  audit  stream
ARGV[1]  approximate limit of entries
ARGV[2]  and on: field, value, ...
Returns  {NONE}; run twice, the entry is stored twice, which readers tolerate
Errors   none
]]
-- @include lib/errors
-- @include lib/now_ms
redis.call("XADD", KEYS[1], "MAXLEN", "~", ARGV[1], "*", "time", string.format("%.0f", now_ms()), unpack(ARGV, 2))
return { ERROR.NONE }
