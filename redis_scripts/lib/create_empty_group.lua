-- Create a group that has offsets and no members. `candidate` is its new id and its locator.
-- Writes group and groups.
local function create_empty_group(group, groups, ref, candidate, now)
  local id, locator, org = string.match(candidate, "^(%S+) (([^/]+)/%S+)$")
  local time = string.format("%.0f", now)
  redis.call("PERSIST", group) -- of a lost group its generation_floor is left
  redis.call("HSET", group, "id", id, "org", org, "tier", "org", "locator", locator, "type", "classic", "state", "Empty",
    "prev_state", "Dead", "generation", "0", "version", "1", "state_since", time, "created", time, "reason", "")
  redis.call("HSET", groups, ref, "classic Empty ")
end
