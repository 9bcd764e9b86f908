#!lua flags=allow-oom
--[[ Set and delete configs of brokers and of client metrics, and publish their new version.

A full server accepts it too: configs are small, capped in number, and one of them may free memory.

KEYS[1]  resource_configs  hash  <kind>/<resource>/<config> -> value
KEYS[2]  info              hash  resource_configs_version
ARGV[1]  channel of changes to these configs
ARGV[2]  maximum number of configs
ARGV[3]  version that the changes were planned on; empty: any
ARGV[4]  number of configs to set
ARGV[5]  and on: field and value of each config to set, then the fields to delete
Returns  {NONE, version}, or {NONE, 0} and nothing was changed: others changed configs after that version.
         Safe to run twice: then the caller plans again
Errors   POLICY_VIOLATION  there would be more configs than the maximum; nothing was changed
]]
-- @include lib/errors
local configs, info = KEYS[1], KEYS[2]
local channel, most, planned_on, setting = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])

local stored = redis.call("HGET", info, "resource_configs_version") or "0"
if planned_on ~= "" and stored ~= planned_on then return { ERROR.NONE, 0 } end
if setting > 0 and redis.call("HLEN", configs) + setting > most then return { ERROR.POLICY_VIOLATION } end
local deleted_from = 5 + 2 * setting
for index = 5, deleted_from - 1, 2 do
  redis.call("HSET", configs, ARGV[index], ARGV[index + 1])
end
for index = deleted_from, #ARGV do
  redis.call("HDEL", configs, ARGV[index])
end
local version = redis.call("HINCRBY", info, "resource_configs_version", 1)
redis.call("PUBLISH", channel, string.format("%.0f", version))
return { ERROR.NONE, version }
