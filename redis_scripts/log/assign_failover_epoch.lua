#!lua flags=allow-oom
--[[ The cluster's incarnation: higher at the first sight of a primary whose replication id is another.

A new id means that a fail-over or a restart came between, and that the end of a log may be lost. One number holds for
all primaries of a Redis Cluster, so that the leader epoch is the same for all partitions. It never goes back, and no
number is given twice: a server that crashes again may forget the last one, with nobody left who knows it, so each is at
least the seconds since 2020, which fit a leader epoch (int32) until 2088. Only a new cluster begins at 1.

KEYS[1]  info     hash  incarnation, master_replid: the ids of the newest set of primaries
KEYS[2]  replids  hash  id -> the incarnation under which it was first seen
ARGV[1]  the highest incarnation that the broker has used, or found in a log
ARGV[2]  and on: master_replid of each primary that it sees; first that of the server which runs this
Returns  {NONE, incarnation}; safe to run twice
Errors   none
]]
-- @include lib/errors
-- @include lib/clock
local info, replids = KEYS[1], KEYS[2]
local KEPT, LEAP, YEAR_2020_S = 1000, 100, 1577836800
local floor, set = tonumber(ARGV[1]), { unpack(ARGV, 2) }

local newest, number = unpack(redis.call("HMGET", info, "master_replid", "incarnation"))
number = tonumber(number or 0)
local is_newest, newest_count, seen = {}, 0, redis.call("HMGET", replids, unpack(set))
for id in string.gmatch(newest or "", "%S+") do
  is_newest[id] = true
  newest_count = newest_count + 1
end

local function take(failover_epoch)
  redis.call("HSET", info, "incarnation", string.format("%.0f", failover_epoch))
  return { ERROR.NONE, failover_epoch }
end

local new, common, first_seen = {}, 0, 0
for i, id in ipairs(set) do
  local known = tonumber(seen[i] or (is_newest[id] and number))
  if known and not seen[i] then redis.call("HSET", replids, id, known) end -- written before there were `replids`
  if not known then new[#new + 1] = id end
  if is_newest[id] then common = common + 1 end
  first_seen = math.max(first_seen, known or 0)
end

if #new > 0 then
  -- A server that took this one's place may not know the last numbers, and logs of the other primaries do.
  local step = (new[1] == set[1] and math.max(#set, newest_count) > 1 and number > 0) and LEAP or 1
  local is_first = number == 0 and floor == 0
  number = math.max(number, floor) + step
  if not is_first then number = math.max(number, math.floor(now_ms() / 1000) - YEAR_2020_S) end
  if redis.call("HLEN", replids) >= KEPT then
    local all = redis.call("HGETALL", replids)
    for i = 1, #all, 2 do
      if not is_newest[all[i]] then redis.call("HDEL", replids, all[i]) end
    end
  end
  for _, id in ipairs(new) do
    redis.call("HSET", replids, id, string.format("%.0f", number))
  end
  redis.call("HSET", info, "master_replid", table.concat(set, " "))
  return take(number)
end
-- Neither less of the newest set, nor more, by what was away when that was seen: one is a primary that was replaced.
if common < #set and common < newest_count then return { ERROR.NONE, first_seen } end
if floor > number then return take(floor) end
return { ERROR.NONE, number }
