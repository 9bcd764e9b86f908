#!lua flags=allow-oom
--[[ Take a block of producer ids that were never assigned before, and never will be again.

A restarted server or a promoted replica may have lost the last blocks. It has another replication id then, so the
counter skips all ids that may have been assigned: it adds a million, and becomes at least the clock's milliseconds,
which also covers a server that restarted empty.

KEYS[1]  producer_ids  string  "<next id> <replication id of the server that counted>"
ARGV[1]  ids in a block
Returns  {NONE, first id as text}; run twice it takes two blocks: the first is unused, which is harmless
Errors   none
]]
-- @include lib/errors
-- @include lib/now_ms
local counter, block = KEYS[1], tonumber(ARGV[1])
local LEAP = 1000000

local replid = string.match(redis.call("INFO", "replication"), "master_replid:(%w+)") or "unknown"
local next_id, counted_by = string.match(redis.call("GET", counter) or "", "^(%d+) (%S+)$")
local first = tonumber(next_id or 0)
if counted_by ~= replid then first = math.max(first + LEAP, now_ms()) end

redis.call("SET", counter, string.format("%.0f %s", first + block, replid))
return { ERROR.NONE, string.format("%.0f", first) }
