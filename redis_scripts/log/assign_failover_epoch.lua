#!lua flags=allow-oom
--[[ Assign the cluster's failover epoch: a higher one when a primary has an unknown replication id.

A new id means a fail-over or a restart, which may have lost the end of a log. One number is valid for all primaries of
a Redis Cluster, so that all partitions have the same leader epoch. It never decreases, and no number is assigned twice:
a server that crashes again may lose the last number when no broker remembers it, so each is at least the seconds since
2020, which fit a leader epoch (int32) until 2088. Only a new cluster begins at 1.

KEYS[1]  info     hash  incarnation (the failover epoch), master_replid: the ids of the newest set of primaries
KEYS[2]  replids  hash  id -> the failover epoch under which it was first observed
ARGV[1]  the highest failover epoch that the broker has used, or found in a log
ARGV[2]  and on: master_replid of each connected primary; the first is that of the server which runs this script
Returns  {NONE, failover epoch}; safe to run twice
Errors   none
]]
-- @include lib/errors
-- @include lib/now_ms
local info, replids = KEYS[1], KEYS[2]
local KEPT, LEAP, YEAR_2020_S = 1000, 100, 1577836800
local floor, set = tonumber(ARGV[1]), { unpack(ARGV, 2) }

local newest, number = unpack(redis.call("HMGET", info, "master_replid", "incarnation"))
number = tonumber(number or 0)
local is_newest, newest_count, stored = {}, 0, redis.call("HMGET", replids, unpack(set))
for id in string.gmatch(newest or "", "%S+") do
  is_newest[id] = true
  newest_count = newest_count + 1
end

local function take(failover_epoch)
  redis.call("HSET", info, "incarnation", string.format("%.0f", failover_epoch))
  return { ERROR.NONE, failover_epoch }
end

local new, common, first_stored = {}, 0, 0
for i, id in ipairs(set) do
  local known = tonumber(stored[i] or (is_newest[id] and number))
  if known and not stored[i] then redis.call("HSET", replids, id, known) end -- stored before the key `replids` existed
  if not known then new[#new + 1] = id end
  if is_newest[id] then common = common + 1 end
  first_stored = math.max(first_stored, known or 0)
end

if #new > 0 then
  -- A promoted replica may have lost the last numbers; the logs of the other primaries contain them.
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
-- Every id is known. A subset or superset of the newest set differs only by primaries that were unavailable; any other
-- set contains a primary that was replaced since, and gets the epoch under which it was first observed.
if common < #set and common < newest_count then return { ERROR.NONE, first_stored } end
if floor > number then return take(floor) end
return { ERROR.NONE, number }
