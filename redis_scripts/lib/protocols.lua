-- The protocols (assignors) that members offer, and how many members support each.
local function names_of(subscription)
  local names, seen, position = {}, {}, 1
  while position <= #subscription do
    local high, low = subscription:byte(position, position + 1)
    local name_end = position + 1 + high * 256 + low
    local name = subscription:sub(position + 2, name_end)
    if not seen[name] then names[#names + 1], seen[name] = name, true end
    local a, b, c, d = subscription:byte(name_end + 1, name_end + 4)
    position = name_end + 5 + ((a * 256 + b) * 256 + c) * 256 + d
  end
  return names
end

local function count_protocols(names, step)
  for _, name in ipairs(names) do
    if redis.call("HINCRBY", protocols, name, step) <= 0 then redis.call("HDEL", protocols, name) end
  end
end

local function protocols_acceptable(protocol_type, names)
  if #names == 0 then return false end
  if g.state == EMPTY then return protocol_type ~= "" end
  if protocol_type ~= g.protocol_type then return false end
  local size = redis.call("HLEN", members)
  for _, name in ipairs(names) do
    if tonumber(redis.call("HGET", protocols, name) or 0) == size then return true end
  end
  return false
end
