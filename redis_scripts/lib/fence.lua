-- Bind a log to a failover epoch of the server `server_id` (its replid); returns its leader epochs. If the log was bound
-- to an earlier one by another server, its end may have been lost: a new leader epoch starts at the remaining end; the
-- epoch is the failover epoch less 1. The high watermark is limited to the remaining end too. While the server is the
-- same, as on the other primaries of a Cluster in which one failed over, nothing is lost and no leader epoch begins:
-- brokers that have not observed the failover epoch still append, and deliver, under the one before it.
-- A log whose slot has moved is bound to its new server without a leader epoch. A replica that was promoted is not taken for
-- such a server by a broker that has not observed the fail-over yet: the next failover epoch has to find the earlier one.
-- Reads log; writes meta.
-- @include lib/log_end
-- @include lib/was_replica_of
local function fence(log, meta, failover_epoch, server_id)
  local known, epochs, proved, bound_by =
    unpack(redis.call("HMGET", meta, "incarnation", "epochs", "high_watermark", "replid"))
  if tonumber(known or 0) >= tonumber(failover_epoch) then
    if bound_by ~= server_id and not was_replica_of(bound_by) then redis.call("HSET", meta, "replid", server_id) end
    return epochs
  end
  redis.call("HSET", meta, "incarnation", failover_epoch, "replid", server_id)
  if bound_by == server_id then return epochs end
  local stop, newest, kept = log_end(log), tonumber(failover_epoch) - 1, {}
  for epoch, start in string.gmatch(epochs, "(%d+):(%d+)") do
    if tonumber(epoch) < newest and tonumber(start) < stop then kept[#kept + 1] = epoch .. ":" .. start end
  end
  kept[#kept + 1] = string.format("%.0f:%.0f", newest, stop)
  epochs = table.concat(kept, " ")
  redis.call("HSET", meta, "epochs", epochs)
  if tonumber(proved or 0) > stop then redis.call("HSET", meta, "high_watermark", string.format("%.0f", stop)) end
  return epochs
end
