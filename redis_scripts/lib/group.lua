-- The group that a script changes: its keys, its hash as the table `g`, and `put`, which records a field to write.
-- `now` is Redis's time. `g.change` is what the script has to write and to notify; `g.change.at` is the deadline being
-- applied (equal to `now` unless the deadline is overdue).
local group, members, subscriptions, assignments = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local protocols, instances, sessions, pending = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local groups, deadlines, events = KEYS[9], KEYS[10], KEYS[11]
local ref, wake_channel, events_max, broker = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local EMPTY, PREPARING, COMPLETING, STABLE = "Empty", "PreparingRebalance", "CompletingRebalance", "Stable"
local now = now_ms()

-- Every call executes this, so the table is written out: a loop over the names costs 50% more.
local function load_group()
  local v = redis.call("HMGET", group, "state", "prev_state", "protocol_type", "protocol", "leader", "elected",
    "generation", "version", "round", "joined_count", "awaiting_sync", "assigned_generation", "state_since",
    "join_deadline", "sync_deadline", "initial_delay", "initial_remaining", "new_member_added", "type")
  return {
    change = { at = now, fields = {} },
    absent = not v[1], is_consumer = v[19] == "consumer", is_share = v[19] == "share", is_streams = v[19] == "streams",
    state = v[1] or EMPTY, prev_state = v[2] or "Dead",
    protocol_type = v[3] or "", protocol = v[4] or "", leader = v[5] or "", elected = v[6] or "",
    generation = tonumber(v[7] or 0), version = tonumber(v[8] or 0), round = tonumber(v[9] or 0),
    joined_count = tonumber(v[10] or 0), awaiting_sync = tonumber(v[11] or 0),
    assigned_generation = tonumber(v[12] or 0), state_since = tonumber(v[13] or 0),
    join_deadline = tonumber(v[14] or 0), sync_deadline = tonumber(v[15] or 0),
    initial_delay = tonumber(v[16] or 0), initial_remaining = tonumber(v[17] or 0), new_member_added = tonumber(v[18] or 0),
  }
end

local g = load_group()

local function put(g, field, value)
  g[field], g.change.fields[field] = value, true
end
