-- The leader's assignments become the generation's, once (spec S11); who was left out gets no bytes.
local function note_synced(member)
  if member.sync_generation ~= g.generation then
    member.sync_generation = g.generation
    put("awaiting_sync", g.awaiting_sync - 1)
    if g.awaiting_sync == 0 then
      put("sync_deadline", 0)
      touch()
      event("stable")
    end
  end
  redis.call("HSET", members, member_id, pack_member(member))
end

local function store_assignments()
  redis.call("DEL", assignments)
  for first = 12, #ARGV, 400 do
    local given, known = {}, {}
    for i = first, math.min(first + 399, #ARGV), 2 do given[#given + 1] = ARGV[i] end
    local records = redis.call("HMGET", members, unpack(given))
    for i, id in ipairs(given) do
      if records[i] then known[#known + 1], known[#known + 2] = id, ARGV[first + 2 * i - 1] end
    end
    if #known > 0 then redis.call("HSET", assignments, unpack(known)) end
  end
end

local function rearm_synced()
  local scores, everyone = {}, redis.call("HGETALL", members)
  for i = 1, #everyone, 2 do
    local session_ms, _, _, sync_generation = everyone[i + 1]:match(HOT)
    if tonumber(sync_generation) == g.generation then
      scores[#scores + 1] = string.format("%.0f", now + session_ms)
      scores[#scores + 1] = everyone[i]
    end
  end
  arm_sessions(scores)
end

local function assign()
  store_assignments()
  rearm_synced()
  put("assigned_generation", g.generation)
  event("assignment_stored", member_id)
  move(STABLE)
  wake()
end
