#!lua flags=allow-oom
--[[ End a broker's lease now; its node id stays reserved for its address until any process may take it.

Where every other lease was ended too, no broker can open a generation until one begins to serve: a restart of Redis that
still has `clean_shutdown` has lost none. A lease that expired may be of a process that stands still and continues later.

KEYS[1]  leases   zset  node id -> when its lease was last renewed, ms
KEYS[2]  brokers  hash  node id -> the broker's record (JSON); its process is "" once the lease was ended
KEYS[3]  info     hash  clean_shutdown, unclean_incarnation, incarnation (the failover epoch)
ARGV[1]  node id
ARGV[2]  process that holds the lease
ARGV[3]  lease duration: ms after the last renewal
ARGV[4]  1: note a clean shutdown if this was the last broker
Returns  {NONE, 1 if it was noted}; safe to run twice
Errors   none
]]
-- @include lib/errors
-- @include lib/now_ms
-- @include lib/lease
local leases, brokers, info = KEYS[1], KEYS[2], KEYS[3]
local node_id, process, gone_ms, is_noted = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4] == "1"

if lease.process(brokers, node_id) ~= process then return { ERROR.NONE, 0 } end
local ended_at = now_ms() - gone_ms
if lease.renewed_at(leases, node_id) > ended_at then redis.call("ZADD", leases, ended_at, node_id) end
lease.set_ended(brokers, node_id)

if not is_noted or not lease.all_ended(leases, brokers) then return { ERROR.NONE, 0 } end
local failover_epoch, unclean = unpack(redis.call("HMGET", info, "incarnation", "unclean_incarnation"))
if not failover_epoch or failover_epoch == unclean then return { ERROR.NONE, 0 } end
redis.call("HSET", info, "clean_shutdown", failover_epoch)
return { ERROR.NONE, 1 }
