#!lua
--[[ Add an entry to a capped stream of samples. Its time is by our clock, as everywhere; its id is by the server's.

A full server refuses it: what is told of its use must not be what fills it.

KEYS[1]  samples  stream
ARGV[1]  entries to be kept, about
ARGV[2]  and on: field, value, ...
Returns  {NONE}; run twice, the sample is there twice, which its readers bear
Errors   none
]]
-- @include lib/errors
-- @include lib/clock
redis.call("XADD", KEYS[1], "MAXLEN", "~", ARGV[1], "*", "time", string.format("%.0f", now_ms()), unpack(ARGV, 2))
return { ERROR.NONE }
