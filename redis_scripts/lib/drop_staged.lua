-- drop_staged(offsets, staged, fields, now_text, topic_id): drop what open transactions staged for partitions, a set of
-- fields; with a topic id only what was staged for that topic. Reads and writes offsets and staged.
-- @include lib/note_unstable
local function drop_staged(offsets, staged, fields, now_text, topic_id)
  if redis.call("HEXISTS", offsets, OFFSET.UNSTABLE) == 0 then return end
  for _, name in ipairs(redis.call("HKEYS", staged)) do
    local partition = name:match("^%d+:(.+)$")
    if partition and fields[partition] and
        (not topic_id or redis.call("HGET", staged, name):match(OFFSET.TOPIC_ID) == topic_id) then
      redis.call("HDEL", staged, name)
    end
  end
  note_unstable(offsets, staged, now_text)
end
