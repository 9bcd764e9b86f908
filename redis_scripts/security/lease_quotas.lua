#!lua flags=allow-oom
--[[ Report a broker's use of token buckets, and lease its shares of their rates.

A bucket gains tokens with Redis's time and loses what is used; it may be negative. The rate is divided max-min fairly
over the brokers whose lease has not ended: whoever asks for less than an equal share gets that, the others share the
rest. No share is below the equal one: a broker whose demand rises need not wait for its next lease. A full server
accepts it too: the values are small, and expire when their bucket would be full.

KEYS[1...]  bucket  string  JSON: tokens at a time, and the leases: process -> demand, end, reported use
ARGV[1]     the broker's process
ARGV[2]     milliseconds that a lease lasts
ARGV[3]     and on, five for each bucket: tokens a second, most tokens, demand in tokens a second, the count of used tokens
            that an earlier report confirmed, the count now
Returns     {NONE, tokens, share, tokens, share, ...}; a repeat counts no use twice
Errors      none
]]
-- @include lib/errors
-- @include lib/now_ms
local process, lease_ms = ARGV[1], tonumber(ARGV[2])
local now = now_ms()

local function fair(leases, rate, own)
  local demands, count = {}, 0
  for _, lease in pairs(leases) do
    count = count + 1
    demands[count] = lease[1]
  end
  table.sort(demands)
  local left, given = rate, 0
  for index, demand in ipairs(demands) do
    local part = math.min(demand, left / (count - index + 1))
    left = left - part
    if demand == own then given = part end
  end
  return math.max((given + left / count) / rate, 1 / count)
end

local reply = { ERROR.NONE }
for index, key in ipairs(KEYS) do
  local at = 5 * index - 2
  local rate, most = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  local demand, confirmed, used = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
  local stored = redis.call("GET", key)
  local bucket = stored and cjson.decode(stored) or { tokens = most, at = now, leases = {} }
  for name, lease in pairs(bucket.leases) do
    if lease[2] <= now and name ~= process then bucket.leases[name] = nil end
  end
  local own = bucket.leases[process]
  if own and own[3] > confirmed then confirmed = own[3] end
  bucket.leases[process] = { demand, now + lease_ms, used }
  local gained = math.max(now - bucket.at, 0) / 1000 * rate
  bucket.tokens = math.min(bucket.tokens + gained, most) - math.max(used - confirmed, 0)
  bucket.at = now
  local full_ms = math.ceil((most - bucket.tokens) / rate * 1000)
  redis.call("SET", key, cjson.encode(bucket), "PX", string.format("%.0f", math.min(full_ms, 1e15) + 2 * lease_ms))
  reply[2 * index] = string.format("%.17g", bucket.tokens)
  reply[2 * index + 1] = string.format("%.17g", fair(bucket.leases, rate, demand))
end
return reply
