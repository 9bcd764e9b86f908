-- Where a log ends: after the last batch of its last entry, which is never removed. Text, exact to 2^53.
local function log_end(log)
  local last = redis.call("XREVRANGE", log, "+", "-", "COUNT", 1)[1]
  if not last then return 0 end
  local offset = tonumber(string.match(last[1], "^%d+"))
  local fields = last[2]
  for i = 1, #fields, 2 do
    if fields[i] == "b" then
      local a, b, c, d = string.byte(fields[i + 1], 24, 27) -- last_offset_delta, int32
      offset = offset + ((a * 256 + b) * 256 + c) * 256 + d + 1
    end
  end
  return offset
end
