-- acknowledge_commits(first, at, is_stored): acknowledge the stored commits of a call in the Redis groups of topics of
-- format record. KEYS[first...] have three keys for each partition: records, meta, readers; ARGV[at...] three texts: the
-- number of its commit in the call, the group, the id before the committed offset. A commit stands even if its
-- stream cannot be acknowledged (a key of another type): the next commit does it. Reads and
-- writes what `acknowledge_commit` does.
-- @include lib/acknowledge_commit
local function acknowledge_commits(first, at, is_stored)
  for i = first, #KEYS, 3 do
    if is_stored(tonumber(ARGV[at])) then
      pcall(acknowledge_commit, KEYS[i], KEYS[i + 1], KEYS[i + 2], ARGV[at + 1], ARGV[at + 2])
    end
    at = at + 3
  end
end
