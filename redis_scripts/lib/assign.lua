-- The leader's assignments become the generation's, once (spec S11); who was left out gets no bytes.
local function note_synced(member)
  if member.sync_generation == g.generation then return end
  member.sync_generation = g.generation
  redis.call("HSET", members, member_id, pack_member(member))
  put("awaiting_sync", g.awaiting_sync - 1)
  if g.awaiting_sync == 0 then
    put("sync_deadline", 0)
    touch()
    event("stable")
  end
end

local function store_assignments(ids)
  local known, given = {}, {}
  for _, id in ipairs(ids) do known[id] = true end
  for i = 11, #ARGV, 2 do
    if known[ARGV[i]] then given[#given + 1], given[#given + 2] = ARGV[i], ARGV[i + 1] end
  end
  redis.call("DEL", assignments)
  for i = 1, #given, 900 do
    redis.call("HSET", assignments, unpack(given, i, math.min(i + 899, #given)))
  end
end

local function assign()
  local ids = redis.call("HKEYS", members)
  store_assignments(ids)
  arm_synced(ids)
  put("assigned_generation", g.generation)
  event("assignment_stored", member_id)
  move(STABLE)
  wake()
end
