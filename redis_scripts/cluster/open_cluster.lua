#!lua flags=allow-oom
--[[ The cluster's identity and the settings that all its brokers share: made by the first, read by all.

KEYS[1]  info  hash  cluster_id, layout, and one field for each shared setting
ARGV[1]  and on: field, value to be kept where there is none yet, ...
Returns  {NONE, the value kept for each field, in the same order}; safe to run twice
Errors   none
]]
-- @include lib/errors
local info = KEYS[1]

local reply = { ERROR.NONE }
for i = 1, #ARGV, 2 do
  redis.call("HSETNX", info, ARGV[i], ARGV[i + 1])
  reply[#reply + 1] = redis.call("HGET", info, ARGV[i])
end
return reply
