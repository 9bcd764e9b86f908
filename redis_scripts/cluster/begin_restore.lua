#!lua
--[[ Begin to restore a backup into a Redis without a cluster, or continue with a restore of the same backup.

Until the end, `restoring` keeps brokers from starting.

KEYS[1]  info              hash    cluster_id, restoring, and the fields of ARGV
KEYS[2]  producer_ids      string  "<next id> <replication id>": of no server, so that the counter skips ids
KEYS[3]  topics            hash
KEYS[4]  users             hash
KEYS[5]  acls              hash
KEYS[6]  quotas            hash
KEYS[7]  resource_configs  hash
ARGV[1]  checksum of the backup
ARGV[2]  the next producer id, or ""
ARGV[3]  and on: fields of `info` and their values
Returns  {NONE}; safe to run twice
Errors   INVALID_REQUEST  there is a cluster, or another backup's restore; nothing was changed
]]
-- @include lib/errors
local info, producer_ids = KEYS[1], KEYS[2]
local checksum, next_producer_id = ARGV[1], ARGV[2]

if redis.call("HGET", info, "restoring") == checksum then return { ERROR.NONE } end
if redis.call("EXISTS", info, producer_ids, KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]) > 0 then return { ERROR.INVALID_REQUEST } end
redis.call("HSET", info, "restoring", checksum, unpack(ARGV, 3))
if next_producer_id ~= "" then redis.call("SET", producer_ids, next_producer_id .. " restored") end
return { ERROR.NONE }
