-- One entry of the shard's event stream: what happened to a group, to whom, and why.
local function event(kind, member_id, member, reason)
  if events_max == 0 then return end
  redis.call("XADD", events, "MAXLEN", "~", events_max, "*",
    "time", string.format("%.0f", at), "group", ref, "generation", string.format("%.0f", g.generation), "kind", kind,
    "member", member_id or "", "client_id", member and member.client_id or "", "host", member and member.client_host or "",
    "reason", reason or "", "broker", broker, "duration_ms", string.format("%.0f", math.max(at - g.state_since, 0)))
end
