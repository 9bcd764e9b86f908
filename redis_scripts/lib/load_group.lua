-- load_group(): the group that a script changes. Reads KEYS[1] to KEYS[11], ARGV[1] to ARGV[4] and the clock; writes nothing.
-- `change` is what the script has to write and to notify; `change.at` is the deadline being applied (equal to `now`
-- unless the deadline is overdue), `change.session_due` the lowest session deadline or less: an early check is harmless,
-- so the extension of a session changes neither this field nor the shard's index; `change.session_moved` is whether the
-- index must be written.
-- @include lib/now_ms
-- Every call executes this, so the table is written out: a loop over the names costs 50% more.
local function load_group()
  local now = now_ms()
  local v = redis.call("HMGET", KEYS[1], "state", "prev_state", "protocol_type", "protocol", "leader", "elected",
    "generation", "version", "round", "joined_count", "awaiting_sync", "assigned_generation", "state_since",
    "join_deadline", "sync_deadline", "initial_delay", "initial_remaining", "new_member_added", "type")
  return {
    keys = { group = KEYS[1], members = KEYS[2], subscriptions = KEYS[3], assignments = KEYS[4], protocols = KEYS[5],
      instances = KEYS[6], sessions = KEYS[7], pending = KEYS[8], groups = KEYS[9], deadlines = KEYS[10], events = KEYS[11] },
    ref = ARGV[1], wake_channel = ARGV[2], events_max = tonumber(ARGV[3]), broker = ARGV[4],
    now = now, change = { at = now, fields = {} },
    absent = not v[1], is_consumer = v[19] == "consumer", is_share = v[19] == "share", is_streams = v[19] == "streams",
    state = v[1] or STATE.EMPTY, prev_state = v[2] or "Dead",
    protocol_type = v[3] or "", protocol = v[4] or "", leader = v[5] or "", elected = v[6] or "",
    generation = tonumber(v[7] or 0), version = tonumber(v[8] or 0), round = tonumber(v[9] or 0),
    joined_count = tonumber(v[10] or 0), awaiting_sync = tonumber(v[11] or 0),
    assigned_generation = tonumber(v[12] or 0), state_since = tonumber(v[13] or 0),
    join_deadline = tonumber(v[14] or 0), sync_deadline = tonumber(v[15] or 0),
    initial_delay = tonumber(v[16] or 0), initial_remaining = tonumber(v[17] or 0), new_member_added = tonumber(v[18] or 0),
  }
end
