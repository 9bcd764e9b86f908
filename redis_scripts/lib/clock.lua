-- Redis's clock is the only clock of the product. Tests swap this file for one that steps.
local function now_ms()
  local time = redis.call("TIME")
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
