-- assign(group, leader_id, first): store the leader's assignments for the generation, once (spec S11); members left out get
-- no bytes. Reads members and ARGV[first...]: the owners of partitions as text, then member id and assignment, one pair
-- after the other. Writes assignments and sessions. The hash always exists then: a Stable group without it lost them.
--
-- Redis stores a hash of short values as a listpack, which it searches for each field added: 500 assignments take
-- 0.9 ms that way, and 0.15 ms in a hash table. A value above Redis's limit (64 bytes) converts it to a hash table.
-- @include lib/state
-- @include lib/sessions
-- @include lib/waiters
-- @include lib/add_event
local LISTED_MAX, LONG_BYTES = 100, 65

local function store_assignments(key, ids, first)
  local known, given, n = {}, {}, 0
  for _, id in ipairs(ids) do known[id] = true end
  for i = first, #ARGV, 2 do
    if known[ARGV[i]] then given[n + 1], given[n + 2], n = ARGV[i], ARGV[i + 1], n + 2 end
  end
  redis.call("DEL", key)
  local many = n > 2 * LISTED_MAX
  if many then redis.call("HSET", key, "", string.rep(" ", LONG_BYTES)) end
  for i = 1, n, 900 do
    redis.call("HSET", key, unpack(given, i, math.min(i + 899, n)))
  end
  if many then redis.call("HDEL", key, "") end
  if n == 0 then redis.call("HSET", key, "", "") end -- without this key, assignments were lost
end

local function assign(group, leader_id, first)
  local ids = redis.call("HKEYS", group.keys.members)
  store_assignments(group.keys.assignments, ids, first + 1)
  sessions.start_synced(group, ids)
  state.put(group, "assigned_generation", group.generation)
  add_event(group, "assignment_stored", leader_id, nil, { detail = ARGV[first] })
  state.move(group, STATE.STABLE)
  if group.awaiting_sync == 0 then add_event(group, "stable") end
  waiters.wake(group)
end
