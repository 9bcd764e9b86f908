-- number_text(number): a whole number as Redis stores it. Reads and writes no key.
local function number_text(number)
  return string.format("%.0f", number)
end
