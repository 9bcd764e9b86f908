-- fence_members(group, consumers, epoch, version): the members of a group with member epochs get an epoch that none of them
-- was given, so that Redis refuses their next requests: each gives up its partitions and joins again, under the group epoch
-- after it. Members that are away stay so. Reads and writes the group's hash, its name in the shard and `consumers` (their
-- records, CONSUMER in `lib/layout`); writes an event; notifies brokers.
-- @include lib/add_event
local function fence_members(group, consumers, epoch, version)
  local records, fenced = redis.call("HGETALL", consumers), string.format("%.0f", epoch)
  for i = 1, #records, 2 do
    local record, is_here = string.gsub(records[i + 1], CONSUMER.OWN_EPOCH, "%1" .. fenced)
    if is_here > 0 then
      record = string.gsub(record, CONSUMER.PREVIOUS_EPOCH, "%1" .. fenced, 1)
      redis.call("HSET", consumers, records[i], record)
    end
  end

  local kind = group.is_consumer and "consumer" or "streams"
  local next_epoch, now_text = string.format("%.0f", epoch + 1), string.format("%.0f", group.now)
  group.keys.members, group.generation = consumers, epoch + 1 -- what the event shows
  add_event(group, "rebalance_started", nil, nil, { cause = "writes_lost" })
  local state = #records > 0 and "Assigning" or STATE.EMPTY
  redis.call("HSET", group.keys.group, "generation", next_epoch, "version", string.format("%.0f", version), "state", state,
    "prev_state", group.state, "state_since", now_text, "reason", "writes_lost")
  if #records == 0 then redis.call("HSET", group.keys.group, "target_epoch", next_epoch) end
  redis.call("HSET", group.keys.groups, group.ref, kind .. " " .. state .. " " .. kind)
  redis.call("PUBLISH", group.wake_channel, string.format("%s:%s:%s:%.0f", group.ref, next_epoch, state, version))
end
