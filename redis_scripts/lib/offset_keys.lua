-- The keys of a group's offsets, in scripts that also take the group's own.
local offsets, staged, unstable = KEYS[12], KEYS[13], KEYS[14]
