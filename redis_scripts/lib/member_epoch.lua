-- Whether a member of a KIP-848 group may not commit at an epoch: the epoch is newer than the member's, or older and some
-- partition of the commit was not assigned to the member ever since (KIP-1251). ARGV[first...last] has the entries.
local EPOCH = '^{"session_timeout_ms":%d+,"epoch":(-?%d+),'

local function assigned_since(record, epoch, first, last)
  local assigned = cjson.decode(record).assigned
  for i = first, last, 2 do
    local of_topic = assigned[string.match(ARGV[i + 1], '"topic_id":"(%x*)"')]
    local since = of_topic and of_topic[string.match(ARGV[i], "(%d+)$")]
    if not since or since > epoch then return false end
  end
  return true
end

local function is_stale(record, epoch, first, last)
  local own = tonumber(string.match(record, EPOCH))
  return epoch > own or (epoch < own and not assigned_since(record, epoch, first, last))
end

-- A member that joined by JoinGroup has a generation.
local function uses_classic(record)
  return string.find(record, ',"classic":{', 1, true)
end

local function stale_code(record)
  return uses_classic(record) and ERROR.ILLEGAL_GENERATION or ERROR.STALE_MEMBER_EPOCH
end
