#!lua flags=allow-oom
--[[ The cluster's incarnation: +1 at the first sight of a server whose replication id is another.

A new id means that a fail-over or a restart came between, and that the end of a log may be lost.

KEYS[1]  info  hash  incarnation, master_replid
ARGV[1]  master_replid of the server that runs this
Returns  {NONE, incarnation}; safe to run twice
Errors   none
]]
-- @include lib/errors
local info, replid = KEYS[1], ARGV[1]

local known, incarnation = unpack(redis.call("HMGET", info, "master_replid", "incarnation"))
if known == replid and incarnation then return { ERROR.NONE, tonumber(incarnation) } end

incarnation = redis.call("HINCRBY", info, "incarnation", 1)
redis.call("HSET", info, "master_replid", replid)
return { ERROR.NONE, incarnation }
