-- The list of a group's staged partitions, which OffsetFetch reads with the offsets: the metadata of the field ":-1".
-- Its words are names of partitions, each behind its producer: "@9:0 t:0 t:1 @12:0 t:1". Behind "@9:1" are those whose
-- offsets are applied while the transaction has others in the group: they become stable together. So what a producer
-- staged is found without a walk over what others did. No topic has an "@" in its name: older brokers read past such
-- words. They write the list from `staged`, without such words; then it is made again here. The commit time of the
-- record is that of the newest staged offset. Reads staged; reads and writes offsets.
local staged_list = {}
local OPEN, APPLIED = "@%s:0", "@%s:1"

local function add_names(list, head, names)
  local _, stop = list:find(head .. " ", 1, true)
  if stop then return list:sub(1, stop) .. names .. " " .. list:sub(stop + 1) end
  return head .. " " .. names .. (list == "" and "" or " ") .. list
end

-- The list without the names behind a head, and these.
local function remove_names(list, head)
  local first, stop = list:find(head .. " ", 1, true)
  if not first then return list, "" end
  local before, following = list:sub(1, first - 1), list:find("@", stop, true)
  if not following then return before:sub(1, -2), list:sub(stop + 1) end
  return before .. list:sub(following), list:sub(stop + 1, following - 2)
end

-- The first `count` of some names, and the text of the others.
local function divide(names, count)
  local first, at = {}, 1
  while at <= #names and #first < count do
    local stop = names:find(" ", at, true) or #names + 1
    first[#first + 1] = names:sub(at, stop - 1)
    at = stop + 1
  end
  return first, names:sub(at)
end

local function list_of(staged)
  local owned, last_ms, list = {}, 0, ""
  for _, name in ipairs(redis.call("HKEYS", staged)) do
    local producer_id, partition = name:match("^(%d+):(.+)$")
    if producer_id then
      owned[producer_id] = owned[producer_id] or {}
      table.insert(owned[producer_id], partition)
      last_ms = math.max(last_ms, tonumber(redis.call("HGET", staged, name):match(OFFSET.COMMIT_TIME) or 0))
    end
  end
  for producer_id, names in pairs(owned) do
    list = add_names(list, OPEN:format(producer_id), table.concat(names, " "))
  end
  return list, last_ms
end

-- The list, and the commit time of the newest staged offset, ms; "" and 0 if none is staged.
function staged_list.read(offsets, staged)
  if redis.call("EXISTS", staged) == 0 then return "", 0 end
  local record = redis.call("HGET", offsets, OFFSET.UNSTABLE) or ""
  local _, before = record:find(OFFSET.METADATA, 1, true)
  local stop = before and record:find('"', before + 1, true)
  if not stop or record:sub(before + 1, before + 1) ~= "@" then return list_of(staged) end
  return record:sub(before + 1, stop - 1), tonumber(record:sub(stop):match(OFFSET.COMMIT_TIME))
end

function staged_list.write(offsets, list, last_ms)
  if list == "" then return redis.call("HDEL", offsets, OFFSET.UNSTABLE) end
  local record = string.format(OFFSET.UNSTABLE_RECORD, list, string.format("%.0f", last_ms))
  redis.call("HSET", offsets, OFFSET.UNSTABLE, record)
end

function staged_list.add(list, producer_id, names)
  if not names[1] then return list end
  return add_names(list, OPEN:format(producer_id), table.concat(names, " "))
end

-- As a set, every partition of the list.
function staged_list.partitions(list)
  local found = {}
  for name in list:gmatch("%S+") do found[name] = true end
  return found
end

-- The list once some of what a producer staged is applied, or dropped: at most `count` names, which are returned next;
-- whether it has others; whether some were applied before. With its last names all of the producer are removed.
function staged_list.take(list, producer_id, count)
  local applied = APPLIED:format(producer_id)
  local is_begun = list:find(applied .. " ", 1, true) ~= nil
  local rest, names = remove_names(list, OPEN:format(producer_id))
  local first, others = divide(names, count)
  if others == "" then return (remove_names(rest, applied)), first, false, is_begun end
  rest = add_names(rest, OPEN:format(producer_id), others)
  return add_names(rest, applied, table.concat(first, " ")), first, true, is_begun
end

-- The list without the names for which `drops(producer_id, partition)` is true.
function staged_list.without(list, drops)
  local words, head, producer_id = {}, nil, nil
  for word in list:gmatch("%S+") do
    local found = word:match("^@(%d+):")
    if found then
      head, producer_id = word, found
    elseif not drops(producer_id, word) then
      words[#words + 1], head = head and head .. " " .. word or word, nil
    end
  end
  return table.concat(words, " ")
end
