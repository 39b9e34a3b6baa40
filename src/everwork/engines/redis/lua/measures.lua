-- Purpose: how attempts went that have ended, by hour and type; a bounded number of sums.
-- Inputs: now; hours; a type, '' for all; the hour and the type to go on behind, '' for the first.
-- Returns: the hour and the type to go on behind, '' at the end; then the hour, the type, and its names and sums in a list of their own, flat.
-- Parts: records
local ENOUGH = 5000
local behind_hour, behind_type, looked = ARGV[4], ARGV[5], 0
local from = behind_hour ~= '' and behind_hour or '(' .. (math.floor(now / 3600000) - ARGV[2])
local types = ARGV[3] ~= '' and {ARGV[3]} or call('SMEMBERS', P .. ':types')
table.sort(types)
local out = {'', ''}
for _, hour in ipairs(call('ZRANGEBYSCORE', P .. ':hours', from, '+inf')) do
  for _, type in ipairs(types) do
    if hour ~= behind_hour or type > behind_type then
      local sums, at = call('HGETALL', P .. ':m:' .. hour .. ':' .. type), #out
      if #sums > 0 then out[at + 1], out[at + 2], out[at + 3] = hour, type, sums end
      looked = looked + 1 + #sums / 2
      if looked >= ENOUGH then
        out[1], out[2] = hour, type
        return out
      end
    end
  end
end
return out
