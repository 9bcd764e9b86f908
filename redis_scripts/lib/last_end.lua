-- last_end(ended, staged, producer_id, ref): ended_ms of the last transaction of a producer that ended in a group, -1 for
-- none. An older broker stored it with the staged offsets. Reads ended and staged.
local function last_end(ended, staged, producer_id, ref)
  local older = string.match(redis.call("HGET", staged, producer_id) or "", "^%d+") or -1
  return math.max(tonumber(redis.call("ZSCORE", ended, producer_id .. " " .. ref) or -1), tonumber(older))
end
