#!lua flags=allow-oom
--[[ Commit offsets of a member of a KIP-848 or streams group; the commit is stored completely or not at all. It extends no session.

KEYS[1]     group        hash  type, state, offsets_deleted_at
KEYS[2]     consumers    hash  member id -> its record
KEYS[3]     sessions     zset  member id -> session deadline, ms
KEYS[4]     revocations  zset  member id -> deadline to confirm a revocation, ms
KEYS[5]     offsets      hash  <topic>:<partition> -> JSON of offset, leader epoch, topic id, metadata, commit time
KEYS[6...]  records      stream  of a partition of format record; behind it its meta (hash, state) and readers (hash, group ->
            its owner's record when it read last); three keys for each such partition
ARGV[1]     when the broker's lease ends, ms by Redis's clock; 0 for a caller without a lease
ARGV[2]     when the commit came to the broker, ms by Redis's clock; negative if it is sent again, 0 if unknown
ARGV[3]     member epoch
ARGV[4]     member id
ARGV[5]     1 if the client's version of the request knows no member epochs
ARGV[6]     count of entries
ARGV[7...]  for each entry: its field and its JSON without commit time and closing brace. Behind them, for each partition of
            format record: 0, the group, the id before the offset
Returns  {NONE}; safe to run twice: the same values again, the last write wins
Errors   COORDINATOR_NOT_AVAILABLE  the lease has ended; or the script was delayed, and another offset was committed
                                    meanwhile, or it was deleted
         OTHER_TYPE                 no such group with members
         EXPIRY_DUE                 a deadline of the group has passed: expire the group, then retry
         UNKNOWN_MEMBER_ID          not a member
         UNSUPPORTED_VERSION        the member must commit by a version with member epochs
         STALE_MEMBER_EPOCH         a newer epoch than the member's, or an older one and some partition was not assigned
                                    to the member ever since (KIP-1251)
         ILLEGAL_GENERATION         the same for a member that joined by JoinGroup
]]
-- @include lib/errors
-- @include lib/now_ms
-- @include lib/member_epoch
-- @include lib/is_late
-- @include lib/is_overtaken
local call, now, offsets, sent_at = redis.call, now_ms(), KEYS[5], tonumber(ARGV[2])
local lease_end, epoch, member_id, entry_count = tonumber(ARGV[1]), tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[6])

local function is_due(key)
  local first = call("ZRANGE", key, 0, 0, "WITHSCORES")[2]
  return first and tonumber(first) <= now
end

local function store(first, entry_count, tail)
  for start = first, first + 2 * entry_count - 1, 2000 do
    local fields = {}
    for i = start, math.min(start + 2000, first + 2 * entry_count) - 1, 2 do
      fields[#fields + 1] = ARGV[i]
      fields[#fields + 1] = ARGV[i + 1] .. tail
    end
    call("HSET", offsets, unpack(fields))
  end
end

if lease_end > 0 and now >= lease_end then return { ERROR.COORDINATOR_NOT_AVAILABLE } end
local hash = call("HMGET", KEYS[1], "type", "state")
if (hash[1] ~= "consumer" and hash[1] ~= "streams") or hash[2] == STATE.EMPTY then return { ERROR.OTHER_TYPE } end
if is_due(KEYS[3]) or is_due(KEYS[4]) then return { ERROR.EXPIRY_DUE } end
local record = call("HGET", KEYS[2], member_id)
if not record then return { ERROR.UNKNOWN_MEMBER_ID } end
if ARGV[5] == "1" and not member_epoch.uses_classic(record) then return { ERROR.UNSUPPORTED_VERSION } end
if member_epoch.is_stale(record, epoch, 7, 6 + 2 * entry_count) then return { member_epoch.stale_code(record) } end
local commit_time = now
if is_late(sent_at, now) then
  local deleted_at = call("HGET", KEYS[1], "offsets_deleted_at")
  local overtaken, committed_at = is_overtaken(offsets, sent_at, 7, entry_count, deleted_at)
  if overtaken then return { ERROR.COORDINATOR_NOT_AVAILABLE } end
  commit_time = math.min(committed_at or now, now)
end
call("HSET", KEYS[1], "has_offsets", "1")
store(7, entry_count, string.format(OFFSET.NEW_COMMIT_TIME .. "}", commit_time))
if #KEYS > 5 then -- these functions are defined only in this case
-- @include lib/acknowledge_commits
  acknowledge_commits(6, 7 + 2 * entry_count, function() return true end)
end
return { ERROR.NONE }
