#!lua flags=allow-oom
--[[ Add and remove access rules of an organisation, and publish the new version of the rules.

A full server accepts it too: rules are small, capped in number, and a right must be revocable then.

KEYS[1]  acls  hash  <org>/<rule> -> JSON of who added it and when
KEYS[2]  info  hash  acls_version
ARGV[1]  channel of changes to rules
ARGV[2]  value of each added rule
ARGV[3]  organisation
ARGV[4]  maximum number of its rules
ARGV[5]  number of rules to add
ARGV[6]  and on: the rules to add, then the rules to remove
Returns  {NONE, version, added, removed}; a repeat adds and removes nothing
Errors   POLICY_VIOLATION  there would be new rules, and more than the maximum; nothing was changed
]]
-- @include lib/errors
-- @include lib/exceeds_org_maximum
local acls, info = KEYS[1], KEYS[2]
local channel, value, org, most, adding = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])

local new, growth = {}, 0
for index = 6, 5 + adding do
  local rule = ARGV[index]
  if not new[rule] and redis.call("HEXISTS", acls, rule) == 0 then
    new[rule], growth = true, growth + 1
  end
end
if exceeds_org_maximum(acls, org, growth, most) then return { ERROR.POLICY_VIOLATION } end
local added, removed = 0, 0
for index = 6, #ARGV do
  if index < 6 + adding then
    added = added + redis.call("HSETNX", acls, ARGV[index], value)
  else
    removed = removed + redis.call("HDEL", acls, ARGV[index])
  end
end
local version = tonumber(redis.call("HGET", info, "acls_version") or 0)
if added + removed > 0 then
  version = redis.call("HINCRBY", info, "acls_version", 1)
  redis.call("PUBLISH", channel, string.format("%.0f", version))
end
return { ERROR.NONE, version, added, removed }
