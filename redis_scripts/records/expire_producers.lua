#!lua flags=allow-oom
--[[ Remove idle producers of a log of format `record` without an open transaction, a slice of them in each call.

KEYS[1]  producers  hash  producer id -> <epoch> <ms of the last append> <batches>
ARGV[1]  cursor: "0", then what the call before returned
ARGV[2]  idle after so many ms
ARGV[3]  number of producers to look at, about
Returns  {NONE, next cursor, "0" after the last slice, producers removed}; safe to run twice
Errors   none
]]
-- @include lib/errors
-- @include lib/now_ms
local idle_since, removed = now_ms() - tonumber(ARGV[2]), 0

local cursor, found = unpack(redis.call("HSCAN", KEYS[1], ARGV[1], "COUNT", ARGV[3]))
for i = 1, #found, 2 do
  local is_open = string.match(found[i + 1], "^%d+ %d+ %S* %-?%d+ [1-9]")
  if not is_open and tonumber(string.match(found[i + 1], "^%d+ (%d+)")) < idle_since then
    removed = removed + redis.call("HDEL", KEYS[1], found[i])
  end
end
return { ERROR.NONE, cursor, removed }
