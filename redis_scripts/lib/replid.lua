-- Reads nothing but `master_replid` of this server: another one means a fail-over or a restart, which may have lost the end
-- of a log.
local function replid()
  return string.match(redis.call("INFO", "replication"), "master_replid:(%x+)")
end
