#!lua flags=allow-oom
--[[ Record which member of a group owns the partition, for the group's mirror.

KEYS[1]  log     stream
KEYS[2]  owners  hash    group -> JSON of the group's own id, generation, member, client
ARGV[1]  group
ARGV[2]  the group's own id, cgp_<ULID>: a recreated group has a later one
ARGV[3]  generation
ARGV[4]  JSON that begins with the two
Returns  {NONE}; safe to run twice
Errors   ILLEGAL_GENERATION          an owner of a later generation, or of a later group of this name, is stored
         UNKNOWN_TOPIC_OR_PARTITION  deleted
]]
-- @include lib/errors
local log, owners = KEYS[1], KEYS[2]
local group, id, generation = ARGV[1], ARGV[2], tonumber(ARGV[3])

if redis.call("EXISTS", log) == 0 then return { ERROR.UNKNOWN_TOPIC_OR_PARTITION } end
local known = redis.call("HGET", owners, group)
if known then
  local known_id, known_generation = string.match(known, '^{"id":"([^"]*)","generation":(%d+)')
  local later = known_id and (known_id > id or (known_id == id and tonumber(known_generation) > generation))
  if later then return { ERROR.ILLEGAL_GENERATION } end
end
redis.call("HSET", owners, group, ARGV[4])
return { ERROR.NONE }
