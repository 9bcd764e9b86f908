#!lua flags=allow-oom
--[[ Replace the record of a transactional id, if it is still the one that the broker read, and set its next deadline.

KEYS[1]  transaction   hash  the record: producer_id, epoch, state, partitions, groups, start_ms, ended_ms, version, ...
KEYS[2]  transactions  hash  the shard's transactional ids: name -> "<state> <producer id> <start_ms>"
KEYS[3]  deadlines     zset  name -> when a broker must look at it, ms; the marks of sweeps, below 0
ARGV[1]  name in the shard's keys, <org>/<percent-encoded transactional id>
ARGV[2]  version that the broker read, "" for none
ARGV[3]  new version, unique
ARGV[4]  "begin": the transaction starts now; "decide": its outcome is decided now; "idle": none is open; "" otherwise
ARGV[5]  the next deadline, ms from now; "" to leave it
ARGV[6]  1: only if the open transaction's time-out has passed, since it began and since sweeps resumed after a gap; one
         that began ahead of Redis's clock, which stepped back, begins now
ARGV[7]  and on: field, value, ...; state and producer_id are the first two
Returns  {NONE, 1 if written, start_ms, update_ms, ended_ms as text}; safe to run twice: the new version is found and the
         same values are returned
Errors   none
]]
-- @include lib/errors
-- @include lib/now_ms
local transaction, transactions, deadlines = KEYS[1], KEYS[2], KEYS[3]
local name, expected, version, change, deadline, overdue = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local now = now_ms()

local current, start_ms, update_ms, ended_ms, timeout_ms =
  unpack(redis.call("HMGET", transaction, "version", "start_ms", "update_ms", "ended_ms", "timeout_ms"))
if current == version then return { ERROR.NONE, 1, start_ms, update_ms, ended_ms } end
if (current or "") ~= expected then return { ERROR.NONE, 0 } end
if overdue == "1" then
  if tonumber(start_ms) > now then
    start_ms = string.format("%.0f", now)
    redis.call("HSET", transaction, "start_ms", start_ms)
    local listed = redis.call("HGET", transactions, name)
    if listed then redis.call("HSET", transactions, name, (string.gsub(listed, "%d+$", start_ms))) end
  end
  local resumed_at = math.min(-tonumber(redis.call("ZSCORE", deadlines, SWEEP.RESUMED) or 0), now)
  local overdue_at = math.max(tonumber(start_ms), resumed_at) + tonumber(timeout_ms)
  if overdue_at > now then
    redis.call("ZADD", deadlines, string.format("%.0f", overdue_at), name)
    return { ERROR.NONE, 0 }
  end
end

update_ms = string.format("%.0f", now)
ended_ms = ended_ms or "-1"
if change == "begin" then start_ms = update_ms end
if change == "idle" then start_ms = "-1" end
if change == "decide" then
  if start_ms == "-1" then start_ms = update_ms end
  ended_ms = string.format("%.0f", math.max(now, tonumber(ended_ms) + 1))
end
redis.call("HSET", transaction, "version", version, "start_ms", start_ms, "update_ms", update_ms, "ended_ms", ended_ms,
  unpack(ARGV, 7))
redis.call("HSET", transactions, name, ARGV[8] .. " " .. ARGV[10] .. " " .. start_ms)
if deadline ~= "" then redis.call("ZADD", deadlines, string.format("%.0f", now + tonumber(deadline)), name) end
return { ERROR.NONE, 1, start_ms, update_ms, ended_ms }
