#!lua flags=allow-oom
--[[ Take the transactional ids of one shard whose deadline has passed; each is taken again later unless it was moved.

KEYS[1]  deadlines  zset  name -> when a broker must look at it, ms
ARGV[1]  minimum age of a deadline, ms
ARGV[2]  time until a taken one is taken again, ms
ARGV[3]  maximum number
Returns  {NONE, names ...}; run twice, the second run takes what the first one left
Errors   none
]]
-- @include lib/errors
-- @include lib/now_ms
local now, reply = now_ms(), { ERROR.NONE }
local until_ms = string.format("%.0f", now - tonumber(ARGV[1]))
for _, name in ipairs(redis.call("ZRANGEBYSCORE", KEYS[1], "-inf", until_ms, "LIMIT", 0, ARGV[3])) do
  redis.call("ZADD", KEYS[1], string.format("%.0f", now + tonumber(ARGV[2])), name)
  reply[#reply + 1] = name
end
return reply
