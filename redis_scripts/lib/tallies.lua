-- Counts over all members, updated at each join and removal, so that no rule has to read every member:
-- `supports:<protocol>`, `offers:<its whole list>`, `session_timeout_ms:<n>`, `rebalance_timeout_ms:<n>`;
-- `metadata_bytes:large` is the sum of the sizes of the members' large metadata. Reads members; writes protocols.
-- @include lib/json
-- @include lib/member_record
local tallies = {}

local function increment(key, field, step)
  if redis.call("HINCRBY", key, field, step) <= 0 then redis.call("HDEL", key, field) end
end

-- Count a member (step 1), or no longer (step -1).
function tallies.count(group, member, step)
  local key = group.keys.protocols
  for _, name in ipairs(member.protocols) do increment(key, "supports:" .. name, step) end
  increment(key, "offers:" .. json(member.protocols), step)
  increment(key, "session_timeout_ms:" .. string.format("%.0f", member.session_timeout_ms), step)
  increment(key, "rebalance_timeout_ms:" .. string.format("%.0f", member.rebalance_timeout_ms), step)
  if member.metadata_bytes then increment(key, "metadata_bytes:large", step * member.metadata_bytes) end
end

-- Count all members again: Redis lost the tallies or the members' records (a deleted key).
local function recount(group)
  redis.call("DEL", group.keys.protocols)
  for _, record in ipairs(redis.call("HVALS", group.keys.members)) do
    tallies.count(group, member_record.unpack(record), 1)
  end
end

-- True if the tallies were wrong, and were counted again. Each member is in one tally of session timeouts.
function tallies.correct(group)
  local counted = 0
  local all = redis.call("HGETALL", group.keys.protocols)
  for i = 1, #all, 2 do
    if all[i]:find("^session_timeout_ms:") then counted = counted + tonumber(all[i + 1]) end
  end
  if counted == redis.call("HLEN", group.keys.members) then return false end
  recount(group)
  return true
end

function tallies.read(group)
  local counted = { supports = {}, offers = {}, session_timeout_ms = {}, rebalance_timeout_ms = {}, metadata_bytes = {} }
  local all = redis.call("HGETALL", group.keys.protocols)
  for i = 1, #all, 2 do
    local kind, what = all[i]:match("^([%l_]+):(.*)$")
    counted[kind][what] = tonumber(all[i + 1])
  end
  return counted
end

function tallies.max_session_timeout(group)
  local longest = 0
  for timeout_ms in pairs(tallies.read(group).session_timeout_ms) do longest = math.max(longest, tonumber(timeout_ms)) end
  return longest
end

function tallies.max_rebalance_timeout(group)
  local longest, timeouts = 0, tallies.read(group).rebalance_timeout_ms
  if next(timeouts) == nil and tallies.correct(group) then timeouts = tallies.read(group).rebalance_timeout_ms end
  for timeout_ms in pairs(timeouts) do longest = math.max(longest, tonumber(timeout_ms)) end
  return longest
end
