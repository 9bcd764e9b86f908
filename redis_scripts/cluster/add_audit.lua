#!lua flags=allow-oom
--[[ Add an entry to the stream of what administrators did. Its time is by our clock; its id is by the server's.

A full server takes it too: what frees memory is to be told as well.

KEYS[1]  audit  stream
ARGV[1]  entries to be kept, about
ARGV[2]  and on: field, value, ...
Returns  {NONE}; run twice, the entry is there twice, which its readers bear
Errors   none
]]
-- @include lib/errors
-- @include lib/clock
redis.call("XADD", KEYS[1], "MAXLEN", "~", ARGV[1], "*", "time", string.format("%.0f", now_ms()), unpack(ARGV, 2))
return { ERROR.NONE }
