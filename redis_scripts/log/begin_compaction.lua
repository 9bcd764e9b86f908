#!lua
--[[ Create the empty stream that a compaction fills; it expires unless the compaction renews it.

KEYS[1]  log        stream
KEYS[2]  compacted  stream  created empty, under a name that no other run has
KEYS[3]  meta       hash    state, incarnation, log_version, log_start, local_start
ARGV[1]  how long the new stream remains, ms
Returns  {NONE, failover epoch, master_replid, log version, log start, local start}: the swap succeeds only if all of
         them are still the same; running twice is refused
Errors   UNKNOWN_TOPIC_OR_PARTITION  deleted, or never created
         FENCED_LEADER_EPOCH         the new stream exists
]]
-- @include lib/errors
-- @include lib/replid
local log, compacted, meta = KEYS[1], KEYS[2], KEYS[3]

local state, failover_epoch, version, log_start, local_start =
  unpack(redis.call("HMGET", meta, "state", "incarnation", "log_version", "log_start", "local_start"))
if state ~= "ready" or redis.call("EXISTS", log) == 0 then return { ERROR.UNKNOWN_TOPIC_OR_PARTITION } end
if redis.call("EXISTS", compacted) == 1 then return { ERROR.FENCED_LEADER_EPOCH } end

redis.call("XGROUP", "CREATE", compacted, "made", "0-0", "MKSTREAM")
redis.call("XGROUP", "DESTROY", compacted, "made")
redis.call("PEXPIRE", compacted, ARGV[1])
return { ERROR.NONE, failover_epoch or "0", replid(), version or "0", log_start, local_start or log_start }
