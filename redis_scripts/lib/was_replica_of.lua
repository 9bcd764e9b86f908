-- Whether this server was promoted and was, until then, a replica of the server with that replication id. Reads nothing but
-- `master_replid2`.
local function was_replica_of(server_id)
  return string.match(redis.call("INFO", "replication"), "master_replid2:(%x+)") == server_id
end
