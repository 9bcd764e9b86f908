-- Whether a generation (text) that is not the group's is the epoch that a classic member had when its KIP-848 group became
-- a classic one, and the member has not rejoined since; the group still waits for it then, in the join phase that the change
-- began: until its end the group's generation is the record's `sync_generation`. Reads and writes no key.
local function is_converted_epoch(state, group_generation, record, generation)
  return state == STATE.PREPARING and string.find(record, string.format(MEMBER.CONVERTED, generation), 1, true)
    and string.find(record, string.format(MEMBER.SYNCED, group_generation), 1, true)
end
