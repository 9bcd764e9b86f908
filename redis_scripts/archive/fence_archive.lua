#!lua flags=allow-oom
--[[ A new start of the archive query takes a partition: publications of earlier starts are refused from now on.

KEYS[1]  archive  hash  fence, archiver, start, end
ARGV[1]  number of the start: above every fence that it read
ARGV[2]  archiver: a token of the start
Returns  {NONE, fence, start, end}, -1 for offsets if nothing was published; a repeat changes nothing
Errors   none
]]
-- @include lib/errors
local archive, number, archiver = KEYS[1], tonumber(ARGV[1]), ARGV[2]

local fence, holder, start, stop = unpack(redis.call("HMGET", archive, "fence", "archiver", "start", "end"))
fence = tonumber(fence or 0)
if holder ~= archiver then
  fence = math.max(fence + 1, number)
  redis.call("HSET", archive, "archiver", archiver, "fence", fence)
end
return { ERROR.NONE, fence, tonumber(start or -1), tonumber(stop or -1) }
