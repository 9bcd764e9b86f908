-- The key of a group's offsets, in scripts that also take the group's own.
local offsets = KEYS[12]
