#!lua flags=allow-oom
--[[ Remove a deleted group's mirror, and its record of the partition's owner.

KEYS[1]  log           stream
KEYS[2]  owners        hash    group -> JSON that begins with the group's own id
KEYS[3]  acknowledged  hash    group -> its last committed offset, its own id
KEYS[4]  readers       hash    group -> the owner's record when it read last (format record)
ARGV[1]  group: the mirror's name
ARGV[2]  the deleted group's own id; the mirror of a recreated group remains
Returns  {NONE, mirrors removed}; safe to run twice
Errors   none
]]
-- @include lib/errors
local log, owners, acknowledged, readers = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local group, id = ARGV[1], ARGV[2]

local known = redis.call("HGET", owners, group)
if known and string.match(known, '^{"id":"([^"]*)"') ~= id then return { ERROR.NONE, 0 } end
redis.call("HDEL", owners, group)
redis.call("HDEL", acknowledged, group)
redis.call("HDEL", readers, group)
local removed = redis.pcall("XGROUP", "DESTROY", log, group)
return { ERROR.NONE, tonumber(removed) or 0 }
