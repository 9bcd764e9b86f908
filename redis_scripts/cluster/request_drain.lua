#!lua flags=allow-oom
--[[ Ask the broker that holds a node id to drain; it reads the request at the next renewal of its lease.

KEYS[1]  leases   zset  node id -> when its lease was last renewed, ms
KEYS[2]  brokers  hash  node id -> the broker's record (JSON)
KEYS[3]  info     hash  drain:<node id>: the process that must drain; a later process with that id need not
ARGV[1]  node id
ARGV[2]  lease duration: ms after the last renewal
Returns  {NONE}; safe to run twice
Errors   BROKER_ID_NOT_REGISTERED  no live broker has this node id
]]
-- @include lib/errors
-- @include lib/now_ms
-- @include lib/lease
local leases, brokers, info = KEYS[1], KEYS[2], KEYS[3]
local node_id, gone_ms = ARGV[1], tonumber(ARGV[2])

if now_ms() - lease.renewed_at(leases, node_id) >= gone_ms then return { ERROR.BROKER_ID_NOT_REGISTERED } end
redis.call("HSET", info, "drain:" .. node_id, lease.process(brokers, node_id))
return { ERROR.NONE }
