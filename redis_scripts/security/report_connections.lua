#!lua flags=allow-oom
--[[ Report how many connections of each organisation a broker has, and get what the other brokers reported.

A full server accepts it too: the values are small, and a few for each broker.

KEYS[1]  org_connections  hash  process of a broker -> <ms when it ends> <JSON: organisation -> connections>
ARGV[1]  the broker's process
ARGV[2]  milliseconds that the report counts
ARGV[3]  its connections, JSON
Returns  {NONE, the JSON of each other broker...}; safe to run twice
Errors   none
]]
-- @include lib/errors
-- @include lib/now_ms
local org_connections = KEYS[1]
local process, counts_ms, own = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local now = now_ms()

local reply, reported = { ERROR.NONE }, redis.call("HGETALL", org_connections)
for at = 1, #reported, 2 do
  local ends, counts = string.match(reported[at + 1], "^(%d+) (.*)$")
  if not ends or tonumber(ends) <= now then
    redis.call("HDEL", org_connections, reported[at])
  elseif reported[at] ~= process then
    reply[#reply + 1] = counts
  end
end
redis.call("HSET", org_connections, process, string.format("%.0f %s", now + counts_ms, own))
return reply
