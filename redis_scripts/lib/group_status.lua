-- The group's status for waiting requests. A script that ends their wait appends it to its own answer, so that the
-- broker which ran the script need not refresh.
local function status_reply()
  return g.state, g.generation, g.version, g.round, g.protocol_type, g.protocol, g.elected, g.assigned_generation, until_next()
end
