-- One topic's record in the catalogue: readable JSON, its fields always in the same order.
-- Reads topics; `announce` writes info, `write` topics.
-- @include lib/now_ms
local topic = {}

function topic.read(topics, name)
  local text = redis.call("HGET", topics, name)
  if text then return cjson.decode(text) end
end

-- Every change increments the catalogue's version; the message names the topic that brokers must read again. A new
-- counter begins at the clock, so that after its loss (FLUSHALL) it does not meet a version that brokers have cached.
function topic.announce(info, channel, name)
  local version = redis.call("HINCRBY", info, "topics_version", 1)
  if version == 1 then version = redis.call("HINCRBY", info, "topics_version", string.format("%.0f", now_ms())) end
  redis.call("PUBLISH", channel, string.format("%.0f %s", version, name))
end

function topic.write(topics, name, record)
  local text = string.format(
    '{"id":"%s","partitions":%d,"wanted":%d,"format":"%s","state":"%s","config":%d}',
    record.id, record.partitions, record.wanted, record.format, record.state, record.config
  )
  redis.call("HSET", topics, name, text)
  return text
end
