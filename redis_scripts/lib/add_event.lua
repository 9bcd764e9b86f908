-- add_event(group, kind, member_id, member, more): the change, the member and the cause (docs/explain.md lists the kinds).
-- Reads the number of members; writes the shard's event stream.
-- In `more`: `cause` is a code word, `reason` the client's own text (KIP-800), `detail` depends on the kind, `since` is
-- the start of the duration, by default that of the present state. Every entry has the same fields in the same order,
-- which Redis then stores once. Client texts may be 32 kB long, and are truncated here.
local function add_event(group, kind, member_id, member, more)
  if group.events_max == 0 then return end
  member, more = member or {}, more or {}
  redis.call("XADD", group.keys.events, "MAXLEN", "~", group.events_max, "*",
    "time", string.format("%.0f", group.change.at), "group", group.ref,
    "generation", string.format("%.0f", group.generation), "kind", kind, "cause", more.cause or "",
    "member", member_id or "", "instance_id", string.sub(member.instance_id or "", 1, EVENT.NAME_MAX),
    "client_id", string.sub(member.client_id or "", 1, EVENT.NAME_MAX), "host", member.client_host or "",
    "reason", more.reason or "", "detail", more.detail or "",
    "members", redis.call("HLEN", group.keys.members), "broker", group.broker,
    "duration_ms", string.format("%.0f", math.max(group.change.at - (more.since or group.state_since), 0)))
end
