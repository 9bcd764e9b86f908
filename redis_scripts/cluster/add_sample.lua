#!lua
--[[ Add an entry to a capped stream of samples. Its time is by our clock, as everywhere; its id is by the server's.

A full server refuses it: samples of memory use must not fill the memory.

KEYS[1]  samples  stream
ARGV[1]  approximate limit of entries
ARGV[2]  and on: field, value, ...
Returns  {NONE}; run twice, the sample is stored twice, which readers tolerate
Errors   none
]]
-- @include lib/errors
-- @include lib/now_ms
redis.call("XADD", KEYS[1], "MAXLEN", "~", ARGV[1], "*", "time", string.format("%.0f", now_ms()), unpack(ARGV, 2))
return { ERROR.NONE }
