-- Leases of node ids. A lease is held until `gone_ms` after its last renewal, by the process in its record.
local lease = {}

function lease.renewed_at(leases, node_id)
  return tonumber(redis.call("ZSCORE", leases, node_id) or 0)
end

function lease.process(brokers, node_id)
  local record = redis.call("HGET", brokers, node_id)
  return record and cjson.decode(record).process
end

-- The set of brokers or what they say of themselves is another: everybody reads the records again.
function lease.changed(info)
  redis.call("HINCRBY", info, "brokers_version", 1)
end
