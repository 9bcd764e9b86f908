-- Whether a member of a KIP-848 group may commit at an epoch: not if it is newer than the member's, nor if it is older and
-- some partition of the commit was not assigned to the member ever since (KIP-1251). ARGV[first...last] has the entries.
-- `record` is the member's (CONSUMER in `lib/layout`). Reads and writes no key.
-- @include lib/errors
local member_epoch = {}

local function assigned_since(record, epoch, first, last)
  local assigned = cjson.decode(record).assigned
  for i = first, last, 2 do
    local of_topic = assigned[string.match(ARGV[i + 1], OFFSET.TOPIC_ID)]
    local since = of_topic and of_topic[string.match(ARGV[i], "(%d+)$")]
    if not since or since > epoch then return false end
  end
  return true
end

function member_epoch.is_stale(record, epoch, first, last)
  local own = tonumber(string.match(record, CONSUMER.EPOCH))
  return epoch > own or (epoch < own and not assigned_since(record, epoch, first, last))
end

-- A member that joined by JoinGroup has a generation.
function member_epoch.uses_classic(record)
  return string.find(record, "," .. CONSUMER.CLASSIC, 1, true)
end

function member_epoch.stale_code(record)
  return member_epoch.uses_classic(record) and ERROR.ILLEGAL_GENERATION or ERROR.STALE_MEMBER_EPOCH
end
