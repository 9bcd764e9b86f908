-- The group's status for waiting requests. A script that ends their wait appends it to its own answer, so that the
-- broker which ran the script need not refresh. The state of a KIP-848 group with members is "Converted" here.
local function status_reply()
  return g.is_consumer and g.state ~= EMPTY and "Converted" or g.state, g.generation, g.version, g.round, g.protocol_type, g.protocol, g.elected, g.assigned_generation, until_next(g)
end
