#!lua flags=allow-oom
--[[ Acknowledge, in a group's Redis group, what a commit completes: XACK up to the committed offset.

On one Redis server the scripts of commits do this themselves; this is for Redis Cluster, where the group and the stream
may be on two primaries.

KEYS[1]  records  stream
KEYS[2]  meta     hash    state
KEYS[3]  readers  hash    group -> the owner's record when it read last, "" if it has only committed
ARGV[1]  group
ARGV[2]  id before the committed offset
Returns  {NONE, entries acknowledged}; safe to run twice
Errors   UNKNOWN_TOPIC_OR_PARTITION  deleted
]]
-- @include lib/errors
-- @include lib/acknowledge_commit
local acknowledged = acknowledge_commit(KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2])
if not acknowledged then return { ERROR.UNKNOWN_TOPIC_OR_PARTITION } end
return { ERROR.NONE, acknowledged }
