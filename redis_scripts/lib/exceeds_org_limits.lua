-- Whether an organisation would be above its limits of topics or partitions if the topic `name` (<org>/<topic>) had
-- `wanted` partitions. Reads quotas (hash) and, only where there is a limit, the organisation's records in topics (hash).
local function exceeds_org_limits(quotas, topics, name, wanted)
  local org = string.match(name, "^[^/]+")
  local function limit(quota)
    local field = "default/" .. quota .. "/org"
    return tonumber(redis.call("HGET", quotas, field .. "=" .. org) or redis.call("HGET", quotas, field) or nil)
  end
  local topics_max, partitions_max = limit("topics_max"), limit("partitions_max")
  if not topics_max and not partitions_max then return false end

  local counted, topic_count, partition_count, cursor = { [name] = true }, 1, wanted, "0"
  repeat
    local page = redis.call("HSCAN", topics, cursor, "MATCH", org .. "/*", "COUNT", 1000)
    cursor = page[1]
    for at = 1, #page[2], 2 do
      local record = cjson.decode(page[2][at + 1])
      if not counted[page[2][at]] and record.state ~= "deleting" then
        topic_count, partition_count = topic_count + 1, partition_count + record.wanted
      end
      counted[page[2][at]] = true
    end
  until cursor == "0"
  return (topics_max and topic_count > topics_max) or (partitions_max and partition_count > partitions_max)
end
