-- Add an entry to the shard's event stream: the change, the member and the cause (docs/explain.md lists the kinds).
-- In `more`: `cause` is a code word, `reason` the client's own text (KIP-800), `detail` depends on the kind, `since` is
-- the start of the duration, by default that of the present state. Every entry has the same fields in the same order,
-- which Redis then stores once. Client texts may be 32 kB long, and are truncated here.
local NOTHING, NAME_MAX = {}, 255

local function event(kind, member_id, member, more)
  if events_max == 0 then return end
  member, more = member or NOTHING, more or NOTHING
  redis.call("XADD", events, "MAXLEN", "~", events_max, "*",
    "time", string.format("%.0f", g.change.at), "group", ref,
    "generation", string.format("%.0f", g.generation), "kind", kind,
    "cause", more.cause or "", "member", member_id or "", "instance_id", string.sub(member.instance_id or "", 1, NAME_MAX),
    "client_id", string.sub(member.client_id or "", 1, NAME_MAX), "host", member.client_host or "", "reason", more.reason or "",
    "detail", more.detail or "", "members", redis.call("HLEN", members), "broker", broker,
    "duration_ms", string.format("%.0f", math.max(g.change.at - (more.since or g.state_since), 0)))
end
