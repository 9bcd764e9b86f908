-- json(value): its text; cjson escapes slashes, which readers would have to undo. Reads and writes no key.
local function json(value)
  local text = cjson.encode(value)
  if text:find("/", 1, true) then text = text:gsub("\\/", "/") end
  return text
end
