-- One entry of the shard's event stream: what happened to a group, to whom and why (docs/explain.md lists the kinds).
-- Of `more`: `cause` is a word for programs, `reason` what the client said itself (KIP-800), `detail` the kind's own,
-- `since` what the duration is counted from, else the present state's begin. Every entry has the same fields in the
-- same order, which Redis then stores once. What clients call themselves may be 32 kB long, and is cut here.
local NOTHING, NAME_MAX = {}, 255

local function event(kind, member_id, member, more)
  if events_max == 0 then return end
  member, more = member or NOTHING, more or NOTHING
  redis.call("XADD", events, "MAXLEN", "~", events_max, "*",
    "time", string.format("%.0f", at), "group", ref, "generation", string.format("%.0f", g.generation), "kind", kind,
    "cause", more.cause or "", "member", member_id or "", "instance_id", string.sub(member.instance_id or "", 1, NAME_MAX),
    "client_id", string.sub(member.client_id or "", 1, NAME_MAX), "host", member.client_host or "", "reason", more.reason or "",
    "detail", more.detail or "", "members", redis.call("HLEN", members), "broker", broker,
    "duration_ms", string.format("%.0f", math.max(at - (more.since or g.state_since), 0)))
end
