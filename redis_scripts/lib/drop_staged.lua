-- drop_staged(offsets, staged, fields, topic_id): drop what open transactions staged for partitions, a set of fields;
-- with a topic id only what was staged for that topic. Reads and writes offsets and staged.
-- @include lib/staged_list
local function drop_staged(offsets, staged, fields, topic_id)
  local list, last_ms = staged_list.read(offsets, staged)
  if list == "" then return end
  local function drops(producer_id, partition)
    if not fields[partition] then return false end
    local name = producer_id .. ":" .. partition
    local value = topic_id and redis.call("HGET", staged, name)
    if topic_id and (not value or value:match(OFFSET.TOPIC_ID) ~= topic_id) then return false end
    redis.call("HDEL", staged, name)
    return true
  end
  staged_list.write(offsets, staged_list.without(list, drops), last_ms)
end
