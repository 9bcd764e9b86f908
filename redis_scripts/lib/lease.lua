-- Leases of node ids. The process in its record holds a lease until `gone_ms` after the last renewal.
-- Reads leases and brokers; `changed` writes info.
-- @include lib/now_ms
local lease = {}

function lease.renewed_at(leases, node_id)
  return tonumber(redis.call("ZSCORE", leases, node_id) or 0)
end

function lease.process(brokers, node_id)
  local record = redis.call("HGET", brokers, node_id)
  return record and cjson.decode(record).process
end

-- The set of brokers or a broker's record changed: every broker reads the records again. A new counter begins at the
-- clock, so that after its loss it does not meet a version that brokers have cached.
function lease.changed(info)
  local version = redis.call("HINCRBY", info, "brokers_version", 1)
  if version == 1 then redis.call("HINCRBY", info, "brokers_version", string.format("%.0f", now_ms())) end
end
