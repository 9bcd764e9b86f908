#!lua
--[[ Create a group without members from a backup, with configs and some of its offsets; others follow in further calls.

What exists stays as it is: another group of the name as a whole, and of a group that an earlier call made each config,
offset and share-partition.

KEYS[1]     group       hash  id, type, state, restored_from, has_offsets
KEYS[2]     offsets     hash  <topic>:<partition> -> JSON
KEYS[3]     configs     hash  name -> value
KEYS[4]     shares      hash  share-partitions of a share group: <topic id in hex>:<partition> -> topic name
KEYS[5]     groups      hash  the shard's groups: name -> "<type> <state> <protocol type>"
KEYS[6]     configured  hash  the shard's groups that have configs -> how many
KEYS[7...]  share       hash  end, epoch, unfinished; one for each share-partition
ARGV[1]     the group's name in the shard's keys
ARGV[2]     the backup: a group that has it in `restored_from` was made from the same one
ARGV[3]     "<type> Empty <protocol type>": create the group; "offsets": add to the group that an earlier call made;
            "configs": there is no group, only configs
ARGV[4...]  lists, each preceded by its length: fields and values of the group; names and values of configs; names and
            values of offsets; for each share-partition its name, the topic's name and the start offset
Returns  {NONE, 1}, or {NONE, 0} if another group has the name, or configs, or if the group was deleted meanwhile;
         safe to run twice
Errors   none
]]
-- @include lib/errors
-- @include lib/now_ms
local call, group, offsets, configs, shares = redis.call, KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local ref, backup, kind, now = ARGV[1], ARGV[2], ARGV[3], string.format("%.0f", now_ms())

local next_arg = 4
local function list()
  local count, found = tonumber(ARGV[next_arg]), {}
  for i = 1, count do found[i] = ARGV[next_arg + i] end
  next_arg = next_arg + 1 + count
  return found
end

local function add(key, items)
  for i = 1, #items, 2 do call("HSETNX", key, items[i], items[i + 1]) end
end

local fields, known = list(), call("HMGET", group, "id", "restored_from")
if known[1] and known[2] ~= backup then return { ERROR.NONE, 0 } end
if kind == "offsets" and not known[1] then return { ERROR.NONE, 0 } end
if kind == "configs" and call("EXISTS", configs) == 1 then return { ERROR.NONE, 0 } end
if #fields > 0 and not known[1] then
  call("PERSIST", group) -- of a lost group its generation_floor is left
  call("HSET", group, "state", "Empty", "prev_state", "Dead", "version", "1", "state_since", now, "reason", "",
    "restored_from", backup, unpack(fields))
  call("HSET", KEYS[5], ref, kind)
end

add(configs, list())
local config_count = call("HLEN", configs)
if config_count > 0 then call("HSET", KEYS[6], ref, config_count) end
local committed = list()
add(offsets, committed)
if #committed > 0 then call("HSET", group, "has_offsets", "1") end
local starts = list()
for i = 7, #KEYS do
  local at = 3 * (i - 7) + 1
  if call("HSETNX", KEYS[i], "end", starts[at + 2]) == 1 then call("HSET", KEYS[i], "epoch", now, "unfinished", 0) end
  call("HSET", shares, starts[at], starts[at + 1])
end
return { ERROR.NONE, 1 }
