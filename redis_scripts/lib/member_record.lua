-- A classic member's record: readable JSON (its layout is MEMBER in `lib/layout`). Reads and writes no key.
-- join_round: the last join phase that it joined. sync_generation: the last generation that its SyncGroup was parked in.
-- converted_epoch: see `lib/is_converted_epoch`; its next join removes it. `about` is the record's end, kept as text until one of its fields changes.
-- @include lib/json
local member_record = {}

local function pack_about(member)
  local software = (member.client_software or "") ~= "" and ',"client_software":' .. json(member.client_software) or ""
  local epoch = member.converted_epoch and string.format(',"converted_epoch":%.0f', member.converted_epoch) or ""
  local replaced = member.replaced and ',"replaced":' .. json(member.replaced) or ""
  if member.replaced_at then replaced = replaced .. string.format(',"replaced_at":%.0f', member.replaced_at) end
  local metadata = member.metadata_bytes and string.format(',"metadata_bytes":%.0f', member.metadata_bytes) or ""
  return string.format('"instance_id":%s,"client_id":%s,"client_host":%s%s%s,"protocols":%s%s%s}', json(member.instance_id),
    json(member.client_id), json(member.client_host), software, epoch, json(member.protocols), metadata, replaced)
end

function member_record.pack(member)
  return string.format(MEMBER.RECORD, member.session_timeout_ms, member.rebalance_timeout_ms,
    member.join_round, member.sync_generation, member.added_round, member.join_by, member.joined_at, member.join_generation,
    json(member.join_token), json(member.told_leader), member.about or pack_about(member))
end

function member_record.unpack(record)
  if not record then return record end
  local member = cjson.decode(record)
  member.about = record:match(MEMBER.ABOUT)
  return member
end
