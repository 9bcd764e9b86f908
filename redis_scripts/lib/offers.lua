-- The protocols (assignors) that a join offers, and whether the group can accept them (spec P2). Reads protocols and the
-- number of members; writes protocols if they were wrong.
-- @include lib/tallies
local offers = {}

-- The names of packed protocols, in order: uint16 length, name, uint32 length, metadata each.
function offers.names_of(packed)
  local names, listed, position = {}, {}, 1
  while position <= #packed do
    local high, low = packed:byte(position, position + 1)
    local name_end = position + 1 + high * 256 + low
    local name = packed:sub(position + 2, name_end)
    if not listed[name] then names[#names + 1], listed[name] = name, true end
    local a, b, c, d = packed:byte(name_end + 1, name_end + 4)
    position = name_end + 5 + ((a * 256 + b) * 256 + c) * 256 + d
  end
  return names
end

function offers.are_equal(names, others)
  if #names ~= #others then return false end
  for i = 1, #names do
    if names[i] ~= others[i] then return false end
  end
  return true
end

local function supported_by_all(group, names)
  local size = redis.call("HLEN", group.keys.members)
  for _, name in ipairs(names) do
    if tonumber(redis.call("HGET", group.keys.protocols, "supports:" .. name) or 0) == size then return true end
  end
  return false
end

-- Protocols that a member offers again were accepted at its first join, and later members had to match them.
function offers.are_acceptable(group, protocol_type, names, member)
  if #names == 0 then return false end
  if group.state == STATE.EMPTY then return protocol_type ~= "" end
  if protocol_type ~= group.protocol_type then return false end
  if member and offers.are_equal(member.protocols, names) then return true end
  return supported_by_all(group, names) or (tallies.correct(group) and supported_by_all(group, names))
end
