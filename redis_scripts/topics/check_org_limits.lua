#!lua flags=no-writes
--[[ Check what topics/create_topic and topics/add_partitions would refuse for an organisation's limits.

KEYS[1]  topics  hash  <org>/<topic> -> record
KEYS[2]  quotas  hash  <org>/<quota>/<entity> -> its value
ARGV[1]  <org>/<topic>, which may exist
ARGV[2]  number of its partitions, including the existing ones
Returns  {NONE}; safe to run twice
Errors   POLICY_VIOLATION  the organisation would be above its limit of topics or partitions
]]
-- @include lib/errors
-- @include lib/exceeds_org_limits
local topics, quotas, name, count = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2])

return { exceeds_org_limits(quotas, topics, name, count) and ERROR.POLICY_VIOLATION or ERROR.NONE }
