#!lua flags=allow-oom
--[[ Take a requested compaction: one that no broker serves, or whose broker stopped renewing its lease.

KEYS[1]  compactions  hash  <org>/<topic>:<partition>:<topic id> -> "requested", "taken <until, ms>", "done <JSON>" or
                            "failed <reason>"
ARGV[1]  length of the lease, ms
Returns  {NONE, the partition as in the hash, "" for none}; running twice takes another one
Errors   none
]]
-- @include lib/errors
-- @include lib/now_ms
local compactions, lease_ms = KEYS[1], tonumber(ARGV[1])
local now = now_ms()

local fields = redis.call("HGETALL", compactions)
for i = 1, #fields, 2 do
  local until_ms = tonumber(string.match(fields[i + 1], "^taken (%d+)$"))
  if fields[i + 1] == "requested" or (until_ms and until_ms <= now) then
    redis.call("HSET", compactions, fields[i], string.format("taken %.0f", now + lease_ms))
    return { ERROR.NONE, fields[i] }
  end
end
return { ERROR.NONE, "" }
