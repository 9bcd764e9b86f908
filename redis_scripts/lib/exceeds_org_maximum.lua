-- Whether an organisation would have more than `most` fields of a hash (<org>/...) with `growth` more of them. Reads
-- the hash: its fields only if those of all organisations are more than `most`, which takes about 1 ms a thousand.
local function exceeds_org_maximum(hash, org, growth, most)
  if growth <= 0 or redis.call("HLEN", hash) + growth <= most then return false end
  local prefix, count = org .. "/", growth
  for _, field in ipairs(redis.call("HKEYS", hash)) do
    if string.sub(field, 1, #prefix) == prefix then count = count + 1 end
  end
  return count > most
end
