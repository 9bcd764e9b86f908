-- subscribed_topics(...): the set of topics that the members of a group subscribe to; nil if unknown, which protects every
-- topic. Reads and writes no key.
local function subscribed_topics(state, protocol_type, generation, subscribed, subscribed_generation)
  if state == "Empty" or (protocol_type ~= "consumer" and protocol_type ~= "streams") then return {} end
  if not subscribed or tonumber(subscribed_generation) ~= tonumber(generation) then return nil end
  local topics = {}
  for _, topic in ipairs(cjson.decode(subscribed)) do topics[topic] = true end
  return topics
end
