#!lua flags=allow-oom
--[[ Store a decision on a share group, if the group is still the one that was decided on and nothing is overdue.

KEYS[1]   group      hash    id, version, write_id, state and the fields of ARGV
KEYS[2]   consumers  hash    member id -> its record
KEYS[3]   targets    hash    member id -> its target assignment
KEYS[4]   sessions   zset    member id -> session deadline, ms
KEYS[5]   groups     hash    the shard's groups: name -> "<type> <state> <protocol type>"
KEYS[6]   deadlines  zset    the shard's index of deadlines
KEYS[7]   events     stream  the shard's events
KEYS[8]   configs    hash    configs of the group
ARGV[1]   the group's name in the shard's keys
ARGV[2]   maximum number of stored events, 0 for none
ARGV[3]   broker
ARGV[4]   own id of the group that was decided on, "" for none
ARGV[5]   its version
ARGV[6]   the id of the write that it was read from, "" for none: versions may come again after Redis lost writes
ARGV[7]   a new id, for this write
ARGV[8]   "<id> <locator>" in case this decision creates the group
ARGV[9]   default of the session timeout of the members, ms
ARGV[10]  default of the heartbeat interval, ms
ARGV[11]  wake channel
ARGV[12...]  lists, each preceded by its length: members whose expiry was decided; fields and values of the group; member
          ids and records; member ids and targets; removed member ids; member ids whose session starts again; events of
          six values each
Returns   {NONE, version, heartbeat interval in ms}, or one of the errors with the version, or with the member id of each overdue deadline
          Run twice, the second run is STALE, or changes only session deadlines.
Errors    STALE       the group changed since it was read; or a member whose expiry was decided is not overdue any more
          EXPIRY_DUE  sessions have ended whose expiry was not decided
]]
-- @include lib/errors
-- @include lib/now_ms
-- @include lib/sweep_resumed_at
-- @include lib/is_still_overdue
local call = redis.call
local group, consumers, targets, sessions = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local groups, deadlines, events = KEYS[5], KEYS[6], KEYS[7]
local ref, events_max, broker = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local configs = call("HMGET", KEYS[8], "share.session.timeout.ms", "share.heartbeat.interval.ms")
local session_timeout_ms, interval_ms = tonumber(configs[1] or ARGV[9]), tonumber(configs[2] or ARGV[10])
local now = now_ms()

local next_arg = 12
local function list()
  local count, found = tonumber(ARGV[next_arg]), {}
  for i = 1, count do found[i] = ARGV[next_arg + i] end
  next_arg = next_arg + 1 + count
  return found
end

local expired = {}
for _, member_id in ipairs(list()) do expired[member_id] = true end

local found = call("HMGET", group, "id", "version", "state", "generation", "write_id")
local version = tonumber(found[2] or 0)
if (found[1] or "") ~= ARGV[4] or version ~= tonumber(ARGV[5]) or (found[5] or "") ~= ARGV[6] then
  return { ERROR.STALE, version }
end

-- A member without contact since the sweep resumed gets a whole session timeout from then on.
local overdue = { ERROR.EXPIRY_DUE }
local due = call("ZRANGEBYSCORE", sessions, "-inf", string.format("%.0f", now), "WITHSCORES")
local granted = #due > 0 and sweep_resumed_at(deadlines, now) + session_timeout_ms
for i = 1, #due, 2 do
  if tonumber(due[i + 1]) < granted and granted > now then
    call("ZADD", sessions, string.format("%.0f", granted), due[i])
  elseif not expired[due[i]] then
    overdue[#overdue + 1] = due[i]
  end
end
for member_id in pairs(expired) do
  if not is_still_overdue(member_id, now, sessions) then return { ERROR.STALE, version } end
end
if #overdue > 1 then return overdue end

local function each(items, step, write)
  for i = 1, #items, 900 * step do write(unpack(items, i, math.min(i + 900 * step - 1, #items))) end
end

local fields = list()
if #fields > 0 then
  local now_text = string.format("%.0f", now)
  if not found[1] then
    call("PERSIST", group) -- of a lost group its generation_floor is left
    local id, locator, org = string.match(ARGV[8], "^(%S+) (([^/]+)/%S+)$")
    call("HSET", group, "id", id, "org", org, "tier", "org", "locator", locator, "created", now_text, "reason", "")
  end
  version = version + 1
  call("HSET", group, "version", version, "write_id", ARGV[7], "session_timeout_ms", configs[1] or "0",
    "heartbeat_interval_ms", configs[2] or "0", unpack(fields))
  local state = call("HGET", group, "state")
  if state ~= found[3] then
    call("HSET", group, "prev_state", found[3] or "Dead", "state_since", now_text)
  end
  call("HSET", groups, ref, "share " .. state .. " share")
end
-- Heartbeats that need no decision extend the session by what the member's record has.
local records, head = list(), string.format('{"session_timeout_ms":%.0f,', session_timeout_ms)
for i = 2, #records, 2 do records[i] = string.gsub(records[i], '^{"session_timeout_ms":%d+,', head) end
each(records, 2, function(...) call("HSET", consumers, ...) end)
each(list(), 2, function(...) call("HSET", targets, ...) end)
local removed = list()
each(removed, 1, function(...)
  call("HDEL", consumers, ...)
  call("HDEL", targets, ...)
  call("ZREM", sessions, ...)
end)
for _, member_id in ipairs(list()) do
  call("ZADD", sessions, "GT", string.format("%.0f", now + session_timeout_ms), member_id)
end

-- The index of deadlines has the lowest deadline or an earlier one: a heartbeat that only extends does not move it.
local first = call("ZRANGE", sessions, 0, 0, "WITHSCORES")[2]
if first then
  call("ZADD", deadlines, first, "share|" .. ref)
else
  call("ZREM", deadlines, "share|" .. ref)
end

local after = call("HMGET", group, "generation", "state_since", "state")
local entries = list()
if #entries > 0 and events_max > 0 then
  local member_count, duration = call("HLEN", consumers), math.max(now - tonumber(after[2] or now), 0)
  for i = 1, #entries, 6 do
    call("XADD", events, "MAXLEN", "~", events_max, "*", "time", string.format("%.0f", now), "group", ref,
      "generation", after[1], "kind", entries[i], "cause", entries[i + 4], "member", entries[i + 1], "instance_id", "",
      "client_id", entries[i + 2], "host", entries[i + 3], "reason", "", "detail", entries[i + 5],
      "members", member_count, "broker", broker, "duration_ms", string.format("%.0f", duration))
  end
end
if #fields > 0 and (#removed > 0 or after[1] ~= found[4] or after[3] ~= found[3]) then
  call("PUBLISH", ARGV[11], string.format("%s:%s:%s:%.0f", ref, after[1], after[3], version))
end
return { ERROR.NONE, version, interval_ms }
