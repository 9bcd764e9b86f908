#!lua flags=allow-oom
--[[ Store the cluster's identity and the settings that all its brokers share: the first broker writes, all read.

KEYS[1]  info  hash  cluster_id, layout, restoring, salt_key, and one field for each shared setting
ARGV[1]  and on: field, value to store if there is none yet, ...
Returns  {NONE, whether a restore has begun and not ended, the stored value of each field, in the same order};
         safe to run twice
Errors   none
]]
-- @include lib/errors
local info = KEYS[1]

local reply = { ERROR.NONE, redis.call("HEXISTS", info, "restoring") }
for i = 1, #ARGV, 2 do
  redis.call("HSETNX", info, ARGV[i], ARGV[i + 1])
  reply[#reply + 1] = redis.call("HGET", info, ARGV[i])
end
return reply
