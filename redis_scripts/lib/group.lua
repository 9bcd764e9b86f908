-- The group that a script changes: its keys, its hash as the table `g`, and `put`, which notes what to write.
-- `now` is Redis's time; `at` is when what is being applied fell due (the same, unless a deadline is late).
local group, members, subscriptions, assignments = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local protocols, instances, sessions, pending = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local groups, deadlines, events = KEYS[9], KEYS[10], KEYS[11]
local ref, wake_channel, events_max, broker = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local EMPTY, PREPARING, COMPLETING, STABLE = "Empty", "PreparingRebalance", "CompletingRebalance", "Stable"
local FIELDS = { "state", "prev_state", "id", "protocol_type", "protocol", "leader", "elected",
  "generation", "version", "round", "joined_count", "awaiting_sync", "assigned_generation", "state_since",
  "join_deadline", "sync_deadline", "initial_delay", "initial_remaining", "new_member_added" }
local TEXTS = 7
local now = now_ms()
local at, changed = now, {}

local function load_group()
  local values, loaded = redis.call("HMGET", group, unpack(FIELDS)), {}
  for i, field in ipairs(FIELDS) do
    loaded[field] = i <= TEXTS and (values[i] or "") or tonumber(values[i] or 0)
  end
  loaded.absent = not values[1]
  return loaded
end

local g = load_group()
if g.absent then g.state, g.prev_state = EMPTY, "Dead" end

local function put(field, value)
  g[field], changed[field] = value, true
end
