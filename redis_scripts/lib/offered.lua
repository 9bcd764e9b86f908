-- The protocols (assignors) that a join offers, and whether the group can accept them (spec P2).
local function names_of(packed)
  local offered, listed, position = {}, {}, 1
  while position <= #packed do
    local high, low = packed:byte(position, position + 1)
    local name_end = position + 1 + high * 256 + low
    local name = packed:sub(position + 2, name_end)
    if not listed[name] then offered[#offered + 1], listed[name] = name, true end
    local a, b, c, d = packed:byte(name_end + 1, name_end + 4)
    position = name_end + 5 + ((a * 256 + b) * 256 + c) * 256 + d
  end
  return offered
end

local function same_list(a, b)
  if #a ~= #b then return false end
  for i = 1, #a do
    if a[i] ~= b[i] then return false end
  end
  return true
end

local function supported_by_all(offered)
  local size = redis.call("HLEN", members)
  for _, name in ipairs(offered) do
    if tonumber(redis.call("HGET", protocols, "supports:" .. name) or 0) == size then return true end
  end
  return false
end

-- Protocols that a member offers again were accepted at its first join, and later members had to match them.
local function acceptable(offered_type, offered, holder)
  if #offered == 0 then return false end
  if g.state == EMPTY then return offered_type ~= "" end
  if offered_type ~= g.protocol_type then return false end
  if holder and same_list(holder.protocols, offered) then return true end
  return supported_by_all(offered) or (correct_tallies() and supported_by_all(offered))
end
