-- Purpose: read counts and durations of finished attempts by hour and type; reads a bounded number of sums.
-- Inputs: now; hours; a type, '' for all; the hour and the type to continue after, '' for the first.
-- Returns: the hour and the type to continue after, '' at the end; then flat: the hour, the type, a list of names and
--   sums.
-- Parts: prelude records
local ENOUGH = 5000
local last_hour, last_type, scanned = ARGV[4], ARGV[5], 0
local from = last_hour ~= '' and last_hour or '(' .. (math.floor(now / 3600000) - ARGV[2])

-- The types that have worked in an hour, from the names of its sums (see parts/effects.lua); other types cost nothing.
local function types_of(hour)
  if ARGV[3] ~= '' then return {ARGV[3]} end
  local types, seen, fields = {}, {}, call('HKEYS', P .. ':w:' .. hour)
  for _, field in ipairs(fields) do
    local type = string.match(field, '^%a+\n([^\n]*)\n')
    if not seen[type] then seen[type], types[#types + 1] = true, type end
  end
  table.sort(types)
  scanned = scanned + #fields / 4
  return types
end

local out = {'', ''}
for _, hour in ipairs(call('ZRANGEBYSCORE', P .. ':hours', from, '+inf')) do
  for _, type in ipairs(types_of(hour)) do
    if hour ~= last_hour or type > last_type then
      local sums, at = call('HGETALL', P .. ':m:' .. hour .. ':' .. type), #out
      if #sums > 0 then out[at + 1], out[at + 2], out[at + 3] = hour, type, sums end
      scanned = scanned + 1 + #sums / 2
      if scanned >= ENOUGH then
        out[1], out[2] = hour, type
        return out
      end
    end
  end
end
return out
