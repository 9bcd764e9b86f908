#!lua flags=allow-oom
--[[ Set and remove quotas of an organisation, and publish the new version of the quotas.

A full server accepts it too: quotas are small, capped in number, and the client that fills it must be limitable then.

KEYS[1]  quotas  hash  <org>/<quota>/<entity> -> its value
KEYS[2]  info    hash  quotas_version
ARGV[1]  channel of changes to quotas
ARGV[2]  organisation
ARGV[3]  maximum number of its quotas
ARGV[4]  and on: pairs of a quota and its value; an empty value removes it
Returns  {NONE, version, changed}; a repeat changes nothing
Errors   POLICY_VIOLATION  there would be more quotas than before, and than the maximum; nothing was changed
]]
-- @include lib/errors
-- @include lib/exceeds_org_maximum
local quotas, info = KEYS[1], KEYS[2]
local channel, org, most = ARGV[1], ARGV[2], tonumber(ARGV[3])

local present, growth, changed = {}, 0, 0
for index = 4, #ARGV, 2 do
  local field, value = ARGV[index], ARGV[index + 1]
  present[field] = redis.call("HGET", quotas, field) or ""
  if present[field] == "" and value ~= "" then growth = growth + 1 end
  if present[field] ~= "" and value == "" then growth = growth - 1 end
end
if exceeds_org_maximum(quotas, org, growth, most) then return { ERROR.POLICY_VIOLATION } end
for index = 4, #ARGV, 2 do
  local field, value = ARGV[index], ARGV[index + 1]
  if value ~= present[field] then
    changed = changed + 1
    if value == "" then
      redis.call("HDEL", quotas, field)
    else
      redis.call("HSET", quotas, field, value)
    end
  end
end
local version = tonumber(redis.call("HGET", info, "quotas_version") or 0)
if changed > 0 then
  version = redis.call("HINCRBY", info, "quotas_version", 1)
  redis.call("PUBLISH", channel, string.format("%.0f", version))
end
return { ERROR.NONE, version, changed }
