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

-- A lease that its process ended, or whose process cannot run any more: nobody continues with it.
function lease.set_ended(brokers, node_id)
  local record = cjson.decode(redis.call("HGET", brokers, node_id))
  record.process = ""
  redis.call("HSET", brokers, node_id, cjson.encode(record))
end

function lease.all_ended(leases, brokers)
  for _, node_id in ipairs(redis.call("ZRANGE", leases, 0, -1)) do
    if lease.process(brokers, node_id) ~= "" then return false end
  end
  return true
end

-- A lease expired and is forgotten: in this failover epoch nothing says any more whether its process has ended.
function lease.note_unclean(info)
  redis.call("HSET", info, "unclean_incarnation", redis.call("HGET", info, "incarnation") or "")
end

-- The set of brokers or a broker's record changed: every broker reads the records again. A new counter begins at the
-- clock, so that after its loss it does not meet a version that brokers have cached.
function lease.changed(info)
  local version = redis.call("HINCRBY", info, "brokers_version", 1)
  if version == 1 then redis.call("HINCRBY", info, "brokers_version", string.format("%.0f", now_ms())) end
end
