#!lua flags=allow-oom
--[[ End a broker's lease now; its node id stays reserved until another process may take it.

KEYS[1]  leases   zset  node id -> when its lease was last renewed, ms
KEYS[2]  brokers  hash  node id -> the broker's record (JSON)
ARGV[1]  node id
ARGV[2]  process that holds the lease
ARGV[3]  lease duration: ms after the last renewal
Returns  {NONE}; safe to run twice
Errors   none
]]
-- @include lib/errors
-- @include lib/now_ms
-- @include lib/lease
local leases, brokers = KEYS[1], KEYS[2]
local node_id, process, gone_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])

if lease.process(brokers, node_id) ~= process then return { ERROR.NONE } end
local ended_at = now_ms() - gone_ms
if lease.renewed_at(leases, node_id) > ended_at then redis.call("ZADD", leases, ended_at, node_id) end
return { ERROR.NONE }
