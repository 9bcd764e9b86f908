-- Whether a generation (text) that is not the group's is the epoch that a classic member had when its KIP-848 group became
-- a classic one, and the member has not rejoined since; the group still waits for it then. Reads and writes no key.
local function is_converted_epoch(state, record, generation)
  return state == STATE.PREPARING and string.find(record, string.format(MEMBER.CONVERTED, generation), 1, true)
end
