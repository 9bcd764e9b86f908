#!lua flags=allow-oom
--[[ Store a decision on a KIP-848 or streams group, if the group is still the one that was decided on and nothing is overdue.

KEYS[1]   group        hash    id, version, write_id, state and the fields of ARGV
KEYS[2]   consumers    hash    member id -> its record
KEYS[3]   targets      hash    member id -> its target assignment
KEYS[4]   sessions     zset    member id -> session deadline, ms
KEYS[5]   revocations  zset    member id -> deadline to confirm a revocation, ms
KEYS[6]   groups       hash    the shard's groups: name -> "<type> <state> <protocol type>"
KEYS[7]   deadlines    zset    the shard's index of deadlines
KEYS[8]   events       stream  the shard's events
KEYS[9]   configs      hash    configs of the group
KEYS[10...]  members  hash  of a classic group that becomes one of KIP-848; behind it its subscriptions, assignments,
          protocols, instances (hashes), sessions (zset), pending (hash)
ARGV[1]   the group's name in the shard's keys
ARGV[2]   wake channel
ARGV[3]   maximum number of stored events, 0 for none
ARGV[4]   broker
ARGV[5]   own id of the group that was decided on, "" for none
ARGV[6]   its version
ARGV[7]   the id of the write that it was read from, "" for none: versions may come again after Redis lost writes
ARGV[8]   a new id, for this write
ARGV[9]   "<id> <locator>" in case this decision creates the group
ARGV[10]  session timeout of the members, ms
ARGV[11]  what a group that becomes one of this type has by its configs: session timeout and heartbeat interval, and
          assignment interval and rollout grace, ms, or the number of standby replicas; 0 for those that are not set
ARGV[12]  the decision has a new target assignment: the time that must have passed since the last one, ms; else 0
ARGV[13]  type of the group: consumer or streams
ARGV[14]  how many records of members it has, -1 for a classic group: one that lost some is read again
ARGV[15...]  lists, each preceded by its length: members whose expiry was decided; fields and values of the group; member
          ids and records; member ids and targets; removed member ids; member ids whose session starts again and their
          session timeouts; member ids and milliseconds to confirm a revocation or to rejoin (-1: none); the same, unless
          the time runs already; events of eight values each
Returns   {NONE, version}, or one of the errors with the version, or with the kind and member id of each overdue deadline
          Run twice, the second run is STALE, or changes only session deadlines.
Errors    STALE    the group changed since it was read, or lost records; or a member whose expiry was decided is not overdue any more
          EXPIRY_DUE  deadlines have passed whose expiry was not decided
          TOO_EARLY   it is not yet time for a new target assignment
]]
-- @include lib/errors
-- @include lib/now_ms
-- @include lib/sweep_resumed_at
-- @include lib/is_still_overdue
local call = redis.call
local group, consumers, targets, sessions, revocations = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local groups, deadlines, events = KEYS[6], KEYS[7], KEYS[8]
local ref, wake_channel, events_max, broker = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local kind = ARGV[13]
local session_timeout_ms, now = tonumber(ARGV[10]), now_ms()

local next_arg = 15
local function list()
  local count, found = tonumber(ARGV[next_arg]), {}
  for i = 1, count do found[i] = ARGV[next_arg + i] end
  next_arg = next_arg + 1 + count
  return found
end

local expired = {}
for _, member_id in ipairs(list()) do expired[member_id] = true end

local found = call("HMGET", group, "id", "version", "state", "write_id", "type", "assigned_at")
local version = tonumber(found[2] or 0)
if (found[1] or "") ~= ARGV[5] or version ~= tonumber(ARGV[6]) or (found[4] or "") ~= ARGV[7] then
  return { ERROR.STALE, version }
end
local record_count = tonumber(ARGV[14])
if found[1] and record_count >= 0 and call("HLEN", consumers) ~= record_count then return { ERROR.STALE, version } end
if found[5] ~= kind then
  local names = { kind .. ".session.timeout.ms", kind .. ".heartbeat.interval.ms", "streams.num.standby.replicas" }
  if kind == "consumer" then names[3], names[4] = "consumer.assignment.interval.ms", "tidegate.rollout.grace.ms" end
  local configs = call("HMGET", KEYS[9], unpack(names))
  for i = 1, #names do configs[i] = configs[i] or "0" end
  if table.concat(configs, " ") ~= ARGV[11] then
    return { ERROR.STALE, version }
  end
end
local assigned_at, min_interval_ms = tonumber(found[6] or 0), tonumber(ARGV[12])
if assigned_at <= now and assigned_at + min_interval_ms > now then return { ERROR.TOO_EARLY, version } end -- no clock stepped back

-- Deadlines that have passed. A member without contact since the sweep resumed gets a whole session timeout from then on.
local overdue = { ERROR.EXPIRY_DUE }
local function find_overdue(deadline, key)
  local due = call("ZRANGEBYSCORE", key, "-inf", string.format("%.0f", now), "WITHSCORES")
  local granted = #due > 0 and sweep_resumed_at(deadlines, now) + session_timeout_ms
  for i = 1, #due, 2 do
    if tonumber(due[i + 1]) < granted and granted > now then
      call("ZADD", key, string.format("%.0f", granted), due[i])
    elseif not expired[due[i]] then
      overdue[#overdue + 1], overdue[#overdue + 2] = deadline, due[i]
    end
  end
end
find_overdue("session", sessions)
find_overdue("revocation", revocations)
for member_id in pairs(expired) do
  if not is_still_overdue(member_id, now, sessions, revocations) then return { ERROR.STALE, version } end
end
if #overdue > 1 then return overdue end

local function each(items, step, write)
  for i = 1, #items, 900 * step do write(unpack(items, i, math.min(i + 900 * step - 1, #items))) end
end

-- The members of a classic group are in the lists: their requests that wait are answered by the wake-up.
local is_converted = #KEYS > 9 and found[5] == "classic" and found[3] ~= STATE.EMPTY
if is_converted then
  call("UNLINK", unpack(KEYS, 10))
  call("ZREM", deadlines, "session|" .. ref, "join|" .. ref, "sync|" .. ref)
  call("HSET", group, "elected", "", "join_deadline", "0", "sync_deadline", "0", "awaiting_sync", "0", "joined_count", "0",
    "assigned_generation", "0", "new_member_added", "0")
end

local fields = list()
if #fields > 0 then
  local now_text = string.format("%.0f", now)
  if not found[1] then
    call("PERSIST", group) -- of a lost group its generation_floor is left
    call("UNLINK", consumers, targets, sessions, revocations)
    local id, locator, org = string.match(ARGV[9], "^(%S+) (([^/]+)/%S+)$")
    call("HSET", group, "id", id, "org", org, "tier", "org", "locator", locator, "created", now_text, "reason", "")
  end
  version = version + 1
  call("HSET", group, "version", version, "write_id", ARGV[8], unpack(fields))
  if min_interval_ms > 0 then call("HSET", group, "assigned_at", now_text) end
  local state = call("HGET", group, "state")
  if state ~= found[3] then
    call("HSET", group, "prev_state", found[3] or "Dead", "state_since", now_text)
  end
  call("HSET", groups, ref, kind .. " " .. state .. " " .. kind)
end
each(list(), 2, function(...) call("HSET", consumers, ...) end)
each(list(), 2, function(...) call("HSET", targets, ...) end)
local removed = list()
each(removed, 1, function(...)
  call("HDEL", consumers, ...)
  call("HDEL", targets, ...)
  call("ZREM", sessions, ...)
  call("ZREM", revocations, ...)
end)
local renewed = list()
for i = 1, #renewed, 2 do
  call("ZADD", sessions, "GT", string.format("%.0f", now + renewed[i + 1]), renewed[i])
end
local timers = list()
for i = 1, #timers, 2 do
  if timers[i + 1] == "-1" then
    call("ZREM", revocations, timers[i])
  else
    call("ZADD", revocations, string.format("%.0f", now + timers[i + 1]), timers[i])
  end
end
local rejoins = list()
for i = 1, #rejoins, 2 do
  call("ZADD", revocations, "NX", string.format("%.0f", now + rejoins[i + 1]), rejoins[i])
end

-- The index of deadlines has the lowest deadline or an earlier one: a heartbeat that only extends does not move it.
local earliest
for _, key in ipairs({ sessions, revocations }) do
  local first = tonumber(call("ZRANGE", key, 0, 0, "WITHSCORES")[2])
  if first and not (earliest and earliest < first) then earliest = first end
end
if earliest then
  call("ZADD", deadlines, string.format("%.0f", earliest), kind .. "|" .. ref)
else
  call("ZREM", deadlines, kind .. "|" .. ref)
end

local after = call("HMGET", group, "generation", "state", "state_since")
local entries = list()
if #entries > 0 and events_max > 0 then
  local member_count, duration = call("HLEN", consumers), math.max(now - tonumber(after[3] or now), 0)
  for i = 1, #entries, 8 do
    call("XADD", events, "MAXLEN", "~", events_max, "*", "time", string.format("%.0f", now), "group", ref,
      "generation", after[1], "kind", entries[i], "cause", entries[i + 5], "member", entries[i + 1], "instance_id", entries[i + 2],
      "client_id", entries[i + 3], "host", entries[i + 4], "reason", entries[i + 6], "detail", entries[i + 7],
      "members", member_count, "broker", broker, "duration_ms", string.format("%.0f", duration))
  end
end
-- Every change is published: a broker that remembers its version notices if it is lost (`groups/bump_generation`).
if #fields > 0 then
  call("PUBLISH", wake_channel, string.format("%s:%s:%s:%.0f", ref, after[1], after[2], version))
end
return { ERROR.NONE, version }
