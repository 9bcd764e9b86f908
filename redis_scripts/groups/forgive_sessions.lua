#!lua flags=allow-oom
--[[ Give members whose sessions are over one more session timeout: Redis was away, so nobody could hear them.

KEYS[1]  members   hash  member id -> its record
KEYS[2]  sessions  zset  member id -> session deadline or lease, ms
Returns  {NONE, how many}; safe to run twice: who was forgiven is not overdue
Errors   none
]]
-- @include lib/errors
-- @include lib/clock
local members, sessions = KEYS[1], KEYS[2]
local now, forgiven = now_ms(), 0

for _, member_id in ipairs(redis.call("ZRANGEBYSCORE", sessions, "-inf", string.format("%.0f", now))) do
  local timeout_ms = string.match(redis.call("HGET", members, member_id) or "", '^{"session_timeout_ms":(%d+)')
  if timeout_ms then
    redis.call("ZADD", sessions, string.format("%.0f", now + timeout_ms), member_id)
    forgiven = forgiven + 1
  end
end
return { ERROR.NONE, forgiven }
