-- is_join_overtaken(group, join, member, owner): whether a join that was late (`lib/is_late`) comes behind what its client,
-- or the next process of its instance, has done through another broker since. It changes nothing then: who still waits for
-- it joins again. `member` is the record of its member id, `owner` that of the member it would replace. A time that is
-- not stored, or ahead of the clock, overtakes nothing. Reads and writes no key.
-- @include lib/state
-- @include lib/is_late
local CLOCK_ERROR_MS = 5 -- of what a broker takes for this server's time

local function is_join_overtaken(group, join, member, owner)
  if not is_late(join.arrived_at, group.now) then return false end
  local since = math.abs(join.arrived_at) - CLOCK_ERROR_MS
  local function is_later(time) return time > since and time <= group.now end
  if owner then return is_later(owner.joined_at) or is_later(owner.replaced_at or 0) end
  -- In an open join phase only a join that is parked already is another one.
  return member and is_later(group.state_since) and (group.state ~= STATE.PREPARING or state.is_joined(group, member))
end
