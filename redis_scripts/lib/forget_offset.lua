-- One partition's offset, gone: the committed one, and those that open transactions hold.
local function forget_offset(field)
  local removed = redis.call("HDEL", offsets, field)
  if redis.call("HDEL", unstable, field) == 0 then return removed end
  for _, name in ipairs(redis.call("HKEYS", staged)) do
    if string.sub(name, -#field - 1) == ":" .. field then redis.call("HDEL", staged, name) end
  end
  return removed
end
