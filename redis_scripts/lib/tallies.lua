-- Counts over all members, updated at each join and removal, so that no rule has to read every member:
-- `supports:<protocol>`, `offers:<its whole list>`, `session_timeout_ms:<n>`, `rebalance_timeout_ms:<n>`;
-- `metadata_bytes:large` is the sum of the sizes of the members' large metadata.
local function tally(field, step)
  if redis.call("HINCRBY", protocols, field, step) <= 0 then redis.call("HDEL", protocols, field) end
end

local function count_member(member, step)
  for _, name in ipairs(member.protocols) do tally("supports:" .. name, step) end
  tally("offers:" .. json(member.protocols), step)
  tally("session_timeout_ms:" .. string.format("%.0f", member.session_timeout_ms), step)
  tally("rebalance_timeout_ms:" .. string.format("%.0f", member.rebalance_timeout_ms), step)
  if member.metadata_bytes then tally("metadata_bytes:large", step * member.metadata_bytes) end
end

-- Count all members again: Redis lost the tallies or the members' records (a deleted key).
local function recount_members()
  redis.call("DEL", protocols)
  for _, record in ipairs(redis.call("HVALS", members)) do count_member(unpack_member(record), 1) end
end

-- True if the tallies were wrong, and were counted again. Each member is in one tally of session timeouts.
local function correct_tallies()
  local counted = 0
  local all = redis.call("HGETALL", protocols)
  for i = 1, #all, 2 do
    if all[i]:find("^session_timeout_ms:") then counted = counted + tonumber(all[i + 1]) end
  end
  if counted == redis.call("HLEN", members) then return false end
  recount_members()
  return true
end

local function read_tallies()
  local counted = { supports = {}, offers = {}, session_timeout_ms = {}, rebalance_timeout_ms = {}, metadata_bytes = {} }
  local all = redis.call("HGETALL", protocols)
  for i = 1, #all, 2 do
    local kind, what = all[i]:match("^([%l_]+):(.*)$")
    counted[kind][what] = tonumber(all[i + 1])
  end
  return counted
end

local function max_rebalance_timeout()
  local longest, timeouts = 0, read_tallies().rebalance_timeout_ms
  if next(timeouts) == nil and correct_tallies() then timeouts = read_tallies().rebalance_timeout_ms end
  for timeout_ms in pairs(timeouts) do longest = math.max(longest, tonumber(timeout_ms)) end
  return longest
end
