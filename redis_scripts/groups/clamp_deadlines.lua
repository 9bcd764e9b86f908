#!lua flags=allow-oom
--[[ Limit the deadlines of one group to now plus their timeouts, after Redis's clock stepped back.

A pending member id gets the longest session timeout of the members. The last session grace was granted now at the latest.

KEYS[1]   group          hash    state, generation, round, leader, protocol, deadlines, spared_at
KEYS[2]   members        hash    member id -> its record
KEYS[3]   subscriptions  hash    member id -> its protocols and their metadata, packed
KEYS[4]   assignments    hash    member id -> the leader's bytes
KEYS[5]   protocols      hash    counts over the members: protocols, offered lists, timeouts
KEYS[6]   instances      hash    static instance id -> member id
KEYS[7]   sessions       zset    member id (also pending) -> deadline or lease, ms
KEYS[8]   pending        hash    assigned member ids that have not joined yet -> client
KEYS[9]   groups         hash    group -> type, state, protocol type
KEYS[10]  deadlines      zset    kind|group -> earliest deadline, ms
KEYS[11]  events         stream  transitions of the shard's groups
ARGV[1]   group's name in the shard's keys
ARGV[2]   wake channel
ARGV[3]   maximum number of stored events, 0 for none
ARGV[4]   broker
Returns   {NONE, number of deadlines clamped}; safe to run twice: a clamped deadline is not too far ahead
Errors    none
]]
-- @include lib/errors
-- @include lib/load_group
-- @include lib/state
-- @include lib/deadlines
-- @include lib/tallies
-- @include lib/finish
local group = load_group()
if group.absent then return { ERROR.NONE, 0 } end
local clamped = 0
local pending_until = group.now + math.max(tallies.max_session_timeout(group), SWEEP.GAP_MS)

local scores = redis.call("ZRANGE", group.keys.sessions, 0, -1, "WITHSCORES")
for i = 1, #scores, 2 do
  local record = redis.call("HGET", group.keys.members, scores[i])
  local latest = record and group.now + string.match(record, MEMBER.SESSION_TIMEOUT) or pending_until
  if tonumber(scores[i + 1]) > latest then
    redis.call("ZADD", group.keys.sessions, string.format("%.0f", latest), scores[i])
    clamped = clamped + 1
  end
end
deadlines.first_session(group)

local function clamp(field, latest)
  if group[field] <= latest then return end
  state.put(group, field, latest)
  clamped = clamped + 1
end
local longest = tallies.max_rebalance_timeout(group)
clamp("join_deadline", group.now + math.max(longest, group.prev_state == STATE.EMPTY and group.initial_delay or 0))
clamp("sync_deadline", group.now + longest)
local spared_at = tonumber(redis.call("HGET", group.keys.group, "spared_at") or 0)
if spared_at > group.now then state.put(group, "spared_at", group.now) end
group.change.session_moved = true
finish(group)
return { ERROR.NONE, clamped }
