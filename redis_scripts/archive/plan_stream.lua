#!lua flags=no-writes
--[[ Read the position of a capped stream, and the end of a part of it; entries are counted, not returned.

KEYS[1]  stream  stream  group events or lag samples
ARGV[1]  id of the entry before the part
ARGV[2]  id of the last entry that may belong to it, or +
ARGV[3]  maximum number of entries of the part, 0 to read the position only
Returns  {NONE, entries ever added, of these trimmed, id of the last added, id of the part's last, entries in the part};
         running twice changes nothing
Errors   none
]]
-- @include lib/errors
local stream = KEYS[1]
local after, until_id, entries_max = ARGV[1], ARGV[2], tonumber(ARGV[3])

if redis.call("EXISTS", stream) == 0 then return { ERROR.NONE, 0, 0, "0-0", after, 0 } end
local info, reply = {}, redis.call("XINFO", "STREAM", stream)
for i = 1, #reply, 2 do info[reply[i]] = reply[i + 1] end
local part = entries_max > 0 and redis.call("XRANGE", stream, "(" .. after, until_id, "COUNT", entries_max) or {}
local added = info["entries-added"]
return { ERROR.NONE, added, added - info["length"], info["last-generated-id"], #part > 0 and part[#part][1] or after, #part }
