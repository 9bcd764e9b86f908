-- One member's record: readable JSON whose hot numbers come first in a fixed order, so that a Lua pattern reads them.
-- joined: it joined the present join phase. syncing: its SyncGroup of the present generation is parked.
-- `about` is the record's end, kept as text until one of its fields changes.
local SESSION_TIMEOUT = '^{"session_timeout_ms":(%d+)'
local ABOUT = '"instance_id":.*$'
local RECORD = '{"session_timeout_ms":%.0f,"rebalance_timeout_ms":%.0f,"join_round":%.0f,"sync_generation":%.0f'
  .. ',"added_round":%.0f,"join_by":%.0f,"joined_at":%.0f,"join_generation":%.0f,"join_token":%s,"told_leader":%s,%s'

local function json(value)
  local text = cjson.encode(value)
  if text:find("/", 1, true) then text = text:gsub("\\/", "/") end
  return text
end

local function pack_about(m)
  local software = (m.client_software or "") ~= "" and ',"client_software":' .. json(m.client_software) or ""
  local replaced = m.replaced and ',"replaced":' .. json(m.replaced) or ""
  local metadata = m.metadata_bytes and string.format(',"metadata_bytes":%.0f', m.metadata_bytes) or ""
  return string.format('"instance_id":%s,"client_id":%s,"client_host":%s%s,"protocols":%s%s%s}',
    json(m.instance_id), json(m.client_id), json(m.client_host), software, json(m.protocols), metadata, replaced)
end

local function pack_member(m)
  return string.format(RECORD, m.session_timeout_ms, m.rebalance_timeout_ms, m.join_round, m.sync_generation,
    m.added_round, m.join_by, m.joined_at, m.join_generation, json(m.join_token), json(m.told_leader),
    m.about or pack_about(m))
end

local function unpack_member(record)
  if not record then return record end
  local m = cjson.decode(record)
  m.about = record:match(ABOUT)
  return m
end
