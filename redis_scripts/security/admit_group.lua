#!lua flags=allow-oom
--[[ Reserve a place among the groups of an organisation for one that a request may create, each group in its own slot.

A full server accepts it too: a commit or a join that it admits may be one of a group that exists.

KEYS[1]  org_groups  hash  group -> when its last reservation was made, ms, 0 for one that a count found; "=version" of the
                           quotas at the last count, "=counted" its time, ms
KEYS[2]  quotas      hash  <org>/<quota>/<entity> -> its value
KEYS[3]  info        hash  quotas_version
ARGV[1]  the organisation
ARGV[2]  the group's name in the keys of its shard
ARGV[3]  a reservation whose group a later count does not find ends after so many ms
ARGV[4]  a count is good for so many ms
ARGV[5]  a count that finds no place is good for so many ms
ARGV[6]  1 with a count: the groups that exist are in the other arguments
ARGV[7]  and on: their names
Returns  {NONE, 1}: admitted; {NONE, 0}: count the groups, then call again; safe to run twice
Errors   POLICY_VIOLATION  the organisation has as many groups as it may have
]]
-- @include lib/errors
-- @include lib/now_ms
local org_groups, quotas, info = KEYS[1], KEYS[2], KEYS[3]
local org, name, now, has_count = ARGV[1], ARGV[2], now_ms(), ARGV[6] == "1"
local reserved_ms, good_ms, full_ms = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])

local field = "default/groups_max/org"
local limit = tonumber(redis.call("HGET", quotas, field .. "=" .. org) or redis.call("HGET", quotas, field) or nil)
if not limit then return { ERROR.NONE, 1 } end

local kind, version = redis.call("TYPE", org_groups).ok, redis.call("HGET", info, "quotas_version") or "0"
if kind ~= "hash" and kind ~= "none" then redis.call("DEL", org_groups) end
if has_count then
  local exists = {}
  for at = 7, #ARGV do exists[ARGV[at]] = true end
  for _, group in ipairs(redis.call("HKEYS", org_groups)) do
    local reserved = not exists[group] and tonumber(redis.call("HGET", org_groups, group)) or 0
    if not exists[group] and reserved + reserved_ms <= now then redis.call("HDEL", org_groups, group) end
  end
  for group in pairs(exists) do redis.call("HSETNX", org_groups, group, "0") end
  redis.call("HSET", org_groups, "=version", version, "=counted", string.format("%.0f", now))
end

local counted = redis.call("HMGET", org_groups, "=version", "=counted")
local age = now - tonumber(counted[2] or 0)
if not has_count and (counted[1] ~= version or age < 0 or age >= good_ms) then return { ERROR.NONE, 0 } end
if redis.call("HEXISTS", org_groups, name) == 0 and redis.call("HLEN", org_groups) - 2 >= limit then
  if not has_count and age >= full_ms then return { ERROR.NONE, 0 } end
  return { ERROR.POLICY_VIOLATION }
end
redis.call("HSET", org_groups, name, string.format("%.0f", now))
return { ERROR.NONE, 1 }
