-- group_status(group): its status for waiting requests. A script that ends their wait appends it to its own answer, so that
-- the broker which ran the script need not refresh. The state of a KIP-848 group with members is "Converted" here.
-- Reads and writes no key.
-- @include lib/deadlines
local function group_status(group)
  return group.is_consumer and group.state ~= STATE.EMPTY and "Converted" or group.state, group.generation, group.version,
    group.round, group.protocol_type, group.protocol, group.elected, group.assigned_generation, deadlines.until_next(group)
end
