-- The key of a group's offsets, in scripts that also take the group's other keys.
local offsets = KEYS[12]
