#!lua flags=allow-oom
--[[ Change configs of a group id; there need not be a group. A KIP-848, share or streams group gets its configs into
its hash, and the session timeout into the records of its members: their next heartbeats use them. A lower session timeout
also lowers their deadlines, but no grace that was granted. Brokers that answer heartbeats of the group from a snapshot are
notified.

KEYS[1]  configs     hash  name -> value
KEYS[2]  group       hash  type, generation, state, version, write_id, session_timeout_ms, heartbeat_interval_ms, spared_at, and
               assignment_interval_ms and rollout_grace_ms, or standby_replicas
KEYS[3]  consumers   hash  member id -> its record
KEYS[4]  sessions    zset  member id -> session deadline, ms
KEYS[5]  configured  hash  the shard's groups that have configs -> how many
KEYS[6]  deadlines   zset  the shard's index of deadlines
ARGV[1]  the group's name in the shard's keys
ARGV[2]  a new id, for this write to the group
ARGV[3]  1: change nothing, only check
ARGV[4]  wake channel
ARGV[5]  number of pairs of configs of which the first must be below the second
ARGV[6...]  each pair: name, default, name, default; then the number of configs to delete, their names; then names and
         values of configs to set
Returns  {NONE, 0}, or {NONE, the number of the first pair that the changed configs contradict}: nothing is changed
         safe to run twice
Errors   none
]]
-- @include lib/errors
-- @include lib/now_ms
local call = redis.call
local configs, group, consumers, sessions, configured, deadlines = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local pairs_end = 5 + 4 * ARGV[5]
local deleted_end = pairs_end + 1 + ARGV[pairs_end + 1]

local before, after, default = {}, {}, {}
local stored = call("HGETALL", configs)
for i = 1, #stored, 2 do before[stored[i]], after[stored[i]] = stored[i + 1], stored[i + 1] end
for i = pairs_end + 2, deleted_end do after[ARGV[i]] = nil end
for i = deleted_end + 1, #ARGV, 2 do after[ARGV[i]] = ARGV[i + 1] end
for i = 6, pairs_end, 2 do default[ARGV[i]] = ARGV[i + 1] end
local function value_of(values, name) return tonumber(values[name] or default[name]) end

for i = 6, pairs_end, 4 do
  if value_of(after, ARGV[i]) >= value_of(after, ARGV[i + 2]) then return { ERROR.NONE, (i - 2) / 4 } end
end
if ARGV[3] == "1" then return { ERROR.NONE, 0 } end

for i = pairs_end + 2, deleted_end do call("HDEL", configs, ARGV[i]) end
for i = deleted_end + 1, #ARGV, 2 do call("HSET", configs, ARGV[i], ARGV[i + 1]) end
local count = call("HLEN", configs)
if count > 0 then call("HSET", configured, ARGV[1], count) else call("HDEL", configured, ARGV[1]) end

-- Whether a record is that of a member that left and waits for its successor: it has a deadline of its own.
local function awaits_successor(record)
  return string.match(record, CONSUMER.EPOCH) == "-2" and string.find(record, CONSUMER.NO_INSTANCE, 1, true)
end

-- Whether a record is that of a classic member, which chose its own session timeout.
local function is_classic(record)
  return string.find(record, CONSUMER.CLASSIC, 1, true)
end

-- A member that heartbeats as it was asked to has the new session timeout after its interval; nobody has a longer one.
local kind = call("HGET", group, "type")
if kind ~= "consumer" and kind ~= "share" and kind ~= "streams" then return { ERROR.NONE, 0 } end
local session_timeout, interval = kind .. ".session.timeout.ms", kind .. ".heartbeat.interval.ms"
local session_timeout_ms, former_timeout_ms, now = value_of(after, session_timeout), value_of(before, session_timeout), now_ms()
-- The grace that `groups/grant_session_grace` granted ends with the sessions as they are.
local has_grace = now < tonumber(call("HGET", group, "spared_at") or 0) + 2 * former_timeout_ms
if session_timeout_ms < former_timeout_ms and not has_grace then
  local latest = string.format("%.0f", now + value_of(before, interval) + session_timeout_ms)
  for _, member_id in ipairs(call("ZRANGEBYSCORE", sessions, "(" .. latest, "+inf")) do
    local record = call("HGET", consumers, member_id)
    if not (record and (is_classic(record) or awaits_successor(record))) then call("ZADD", sessions, latest, member_id) end
  end
  call("ZADD", deadlines, "XX", "LT", latest, kind .. "|" .. ARGV[1])
end
local COPIED = { session_timeout_ms = session_timeout, heartbeat_interval_ms = interval }
if kind == "streams" then
  COPIED.standby_replicas = "streams.num.standby.replicas"
elseif kind == "consumer" then
  COPIED.assignment_interval_ms, COPIED.rollout_grace_ms = "consumer.assignment.interval.ms", "tidegate.rollout.grace.ms"
end
local is_changed = false
for field, name in pairs(COPIED) do
  local value = after[name] or "0"
  if (call("HGET", group, field) or "0") ~= value then
    call("HSET", group, field, value)
    is_changed = true
  end
end
if not is_changed then return { ERROR.NONE, 0 } end
call("HINCRBY", group, "version", 1)
call("HSET", group, "write_id", ARGV[2])
local records = call("HGETALL", consumers)
for i = 1, #records, 2 do
  if not is_classic(records[i + 1]) then
    local head = string.format(CONSUMER.NEW_TIMEOUT, session_timeout_ms)
    call("HSET", consumers, records[i], (string.gsub(records[i + 1], CONSUMER.ANY_TIMEOUT, head)))
  end
end
local state = call("HMGET", group, "generation", "state", "version")
call("PUBLISH", ARGV[4], string.format("%s:%s:%s:%s", ARGV[1], state[1], state[2], state[3]))
return { ERROR.NONE, 0 }
