-- A share-partition (KIP-932): the end of its window, and rows of offset ranges in flight. Reads its four keys. An offset
-- below `last_end` that no row contains is finished. An acquired row without an owner waits: until the deadline of its
-- lock, or, without a lock, until an earlier record of its key is finished. The owner of a row is a member id, a tab, and
-- the id of the share session that it was acquired in; older brokers wrote no session.
local share_partition = {}
local ROW = "^(%d+) (%d+) (%d+) (.*)$"

-- The share-partition whose keys begin at KEYS[at], of a share group (`lib/share_rows`), if the caller changes it; nil if
-- it is not initialised.
function share_partition.open(at, group)
  local found = redis.call("HMGET", KEYS[at], "end", "epoch", "unfinished", "chained")
  if not found[1] then return nil end
  return {
    group = group, hash = KEYS[at], available = KEYS[at + 1], acquired = KEYS[at + 2], locks = KEYS[at + 3],
    last_end = tonumber(found[1]), epoch = found[2], unfinished = tonumber(found[3]),
    chained = tonumber(found[4] or 0), was_chained = tonumber(found[4] or 0),
  }
end

-- The start offset: the first offset that is not finished.
function share_partition.start_of(p)
  local start = p.last_end
  for _, key in ipairs({ p.available, p.acquired }) do
    local first = tonumber(redis.call("ZRANGE", key, 0, 0)[1])
    if first and first < start then start = first end
  end
  return start
end

function share_partition.row_of(first, stored)
  local last, count, size, owner = string.match(stored, ROW)
  local member_id, session = string.match(owner, "^(.*)\t(%x*)$")
  return { first = tonumber(first), last = tonumber(last), count = tonumber(count), size = tonumber(size),
    owner = member_id or owner, session = session or "" }
end

-- The rows of first offsets; those that Redis has lost are left out. In a script that changes the group they count.
function share_partition.rows_of(p, firsts)
  local rows = {}
  if p.group then p.group.rows_left = p.group.rows_left - #firsts end
  for at = 1, #firsts, 1000 do
    local part = { unpack(firsts, at, math.min(at + 999, #firsts)) }
    for i, stored in ipairs(redis.call("HMGET", p.hash, unpack(part))) do
      if stored then rows[#rows + 1] = share_partition.row_of(part[i], stored) end
    end
  end
  return rows
end

function share_partition.length(row)
  return row.last - row.first + 1
end

-- The deadline of the first lock to expire; -1 if there is none.
function share_partition.next_deadline(p)
  return tonumber(redis.call("ZRANGE", p.locks, 0, 0, "WITHSCORES")[2] or -1)
end
