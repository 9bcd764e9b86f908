-- The vote: each member votes for its first protocol that all support. The leader's order breaks ties.
local function vote()
  local counted, size, votes = read_tallies(), redis.call("HLEN", members), {}
  for name, supporters in pairs(counted.supports) do
    if supporters == size then votes[name] = 0 end
  end
  for list, voters in pairs(counted.offers) do
    for _, name in ipairs(cjson.decode(list)) do
      if votes[name] then
        votes[name] = votes[name] + voters
        break
      end
    end
  end
  local best
  for _, name in ipairs(unpack_member(redis.call("HGET", members, g.leader)).protocols) do
    if votes[name] and (not best or votes[name] > votes[best]) then best = name end
  end
  return best
end

local function select_protocol()
  return vote() or (correct_tallies() and vote()) or ""
end
