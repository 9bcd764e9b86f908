-- The group as those who wait for it see it. A script that ends their wait returns it behind its own answer, so that
-- the broker which ran it need not look.
local function status_reply()
  return g.state, g.generation, g.version, g.round, g.protocol_type, g.protocol, g.elected, g.assigned_generation, until_next()
end
