-- select_protocol(group): each member votes for its first protocol that all support; the leader's order breaks ties.
-- Reads members and protocols; writes protocols if they were wrong.
-- @include lib/member_record
-- @include lib/tallies
local function vote(group)
  local counted, size, votes = tallies.read(group), redis.call("HLEN", group.keys.members), {}
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
  for _, name in ipairs(member_record.unpack(redis.call("HGET", group.keys.members, group.leader)).protocols) do
    if votes[name] and (not best or votes[name] > votes[best]) then best = name end
  end
  return best
end

local function select_protocol(group)
  return vote(group) or (tallies.correct(group) and vote(group)) or ""
end
