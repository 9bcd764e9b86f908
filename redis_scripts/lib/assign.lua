-- Store the leader's assignments for the generation, once (spec S11); members left out get no bytes. The hash always
-- exists then: a Stable group without it has lost its assignments.
--
-- Redis stores a hash of short values as a listpack, which it searches for each field added: 500 assignments take
-- 0.9 ms that way, and 0.15 ms in a hash table. A value above Redis's limit (64 bytes) converts it to a hash table.
local LISTED_MAX, LONG = 100, string.rep(" ", 65)

local function store_assignments(ids)
  local known, given, n = {}, {}, 0
  for _, id in ipairs(ids) do known[id] = true end
  for i = assignments_from + 1, #ARGV, 2 do
    if known[ARGV[i]] then given[n + 1], given[n + 2], n = ARGV[i], ARGV[i + 1], n + 2 end
  end
  redis.call("DEL", assignments)
  local many = n > 2 * LISTED_MAX
  if many then redis.call("HSET", assignments, "", LONG) end
  for i = 1, n, 900 do
    redis.call("HSET", assignments, unpack(given, i, math.min(i + 899, n)))
  end
  if many then redis.call("HDEL", assignments, "") end
  if n == 0 then redis.call("HSET", assignments, "", "") end -- without this key, assignments were lost
end

local function assign()
  local ids = redis.call("HKEYS", members)
  store_assignments(ids)
  arm_synced(ids)
  put(g, "assigned_generation", g.generation)
  event("assignment_stored", member_id, nil, { detail = ARGV[assignments_from] })
  move(STABLE)
  if g.awaiting_sync == 0 then event("stable") end
  wake(g)
end
