-- now_ms(): Redis's time, which decides all deadlines. Tests replace this file by a clock that they step.
-- Reads and writes no key.
local function now_ms()
  local time = redis.call("TIME")
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
