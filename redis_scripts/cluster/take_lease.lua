#!lua flags=allow-oom
--[[ Give a broker process a node id: its previous one, the requested one, the last one of its address, or the lowest
that is free.

KEYS[1]  leases   zset  node id -> when its lease was last renewed, ms
KEYS[2]  brokers  hash  node id -> the broker's record (JSON); its process is "" once the lease was ended
KEYS[3]  info     hash  brokers_version, drain:<node id>, unclean_incarnation, incarnation (the failover epoch)
ARGV[1]  process that asks
ARGV[2]  its record (JSON with process, address)
ARGV[3]  requested node id, or ""
ARGV[4]  lease duration: ms after the last renewal
ARGV[5]  ms after the end of a lease until a process at another address may take its node id
ARGV[6]  1: a lease of the same address goes to this process, because its own process cannot have the port any more
Returns  {NONE, node id, 0}, or if the requested node id is held {NONE, -1, when it was last renewed}; safe to run twice
Errors   none
]]
-- @include lib/errors
-- @include lib/now_ms
-- @include lib/lease
local leases, brokers, info = KEYS[1], KEYS[2], KEYS[3]
local process, record, wanted = ARGV[1], ARGV[2], ARGV[3]
local gone_ms, reuse_ms, address_is_ours = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6] == "1"

local now, own, inherited = now_ms(), nil, nil
local address = cjson.decode(record).address
local node_ids = redis.call("ZRANGE", leases, 0, -1)
for i = #node_ids, 1, -1 do -- the latest first
  local node_id = node_ids[i]
  local renewed_at = lease.renewed_at(leases, node_id)
  local held = cjson.decode(redis.call("HGET", brokers, node_id) or "{}")
  if held.process == process then
    own = node_id
  elseif address_is_ours and held.address == address and wanted == "" and not inherited then
    inherited = node_id
    -- It may be of a live broker that advertises our address by mistake, which then takes another node id.
    if held.process ~= "" and renewed_at + gone_ms > now then lease.note_unclean(info) end
  elseif renewed_at + gone_ms + reuse_ms <= now then
    if held.process ~= "" then lease.note_unclean(info) end
    redis.call("ZREM", leases, node_id)
    redis.call("HDEL", brokers, node_id)
    redis.call("HDEL", info, "drain:" .. node_id)
  elseif address_is_ours and held.address == address then
    if renewed_at + gone_ms > now then -- of a process that died, or one of a live broker that advertises our address
      redis.call("ZADD", leases, now - gone_ms, node_id)
    else
      lease.set_ended(brokers, node_id)
    end
  end
end

local node_id = own or inherited
if wanted ~= "" then
  local renewed_at = lease.renewed_at(leases, wanted)
  if wanted ~= own and renewed_at + gone_ms > now then return { ERROR.NONE, -1, renewed_at } end
  if wanted ~= own and (lease.process(brokers, wanted) or "") ~= "" then lease.note_unclean(info) end
  node_id = wanted
elseif not node_id then
  node_id = 1
  while redis.call("ZSCORE", leases, node_id) do node_id = node_id + 1 end
end

redis.call("ZADD", leases, now, node_id)
redis.call("HSET", brokers, node_id, record)
lease.changed(info)
return { ERROR.NONE, tonumber(node_id), 0 }
