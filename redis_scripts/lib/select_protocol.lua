-- The vote: each member for its first protocol that all support. Ties go by the leader's order.
local PROTOCOLS = '"protocols":'

local function ballot(record)
  local _, last = record:find(PROTOCOLS, 1, true)
  return record:sub(last + 1, -2)
end

local function candidates()
  local size, found, count, only = redis.call("HLEN", members), {}, 0, nil
  local counts = redis.call("HGETALL", protocols)
  for i = 1, #counts, 2 do
    if tonumber(counts[i + 1]) == size then found[counts[i]], count, only = 0, count + 1, counts[i] end
  end
  return found, count, only
end

local function select_protocol(records, leader_record)
  local votes, count, only = candidates()
  if count == 1 then return only end
  local ballots = {}
  for _, record in ipairs(records) do
    local names = ballot(record)
    ballots[names] = (ballots[names] or 0) + 1
  end
  for names, voters in pairs(ballots) do
    for _, name in ipairs(cjson.decode(names)) do
      if votes[name] then
        votes[name] = votes[name] + voters
        break
      end
    end
  end
  local best
  for _, name in ipairs(cjson.decode(ballot(leader_record))) do
    if votes[name] and (not best or votes[name] > votes[best]) then best = name end
  end
  return best
end
