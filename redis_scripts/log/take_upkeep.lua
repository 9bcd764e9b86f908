#!lua flags=allow-oom
--[[ Assign due upkeep to one broker, and make it due again later, in case that broker dies.

KEYS[1]  upkeep  zset  <org>/<topic>:<partition>:<topic id> -> due, ms
ARGV[1]  maximum number of items
ARGV[2]  ms until an item is due again
Returns  {NONE, {item, ...}}; running twice takes other items
Errors   none
]]
-- @include lib/errors
-- @include lib/now_ms
local upkeep = KEYS[1]

local items = redis.call("ZRANGEBYSCORE", upkeep, "-inf", now_ms(), "LIMIT", 0, ARGV[1])
local due = now_ms() + tonumber(ARGV[2])
for _, item in ipairs(items) do
  redis.call("ZADD", upkeep, due, item)
end
return { ERROR.NONE, items }
