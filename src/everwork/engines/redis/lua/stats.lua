-- Purpose: read hourly worker statistics and job counts.
-- Inputs: now; hours.
-- Returns: now; the counts of count.lua; then per hour its number and a list of flat pairs: a string made of name,
--   type and worker; the sum.
-- Parts: prelude records
local this_hour = math.floor(now / 3600000)
local out = {NOW, call('HGETALL', P .. ':n')}
for _, hour in ipairs(call('ZRANGEBYSCORE', P .. ':hours', '(' .. (this_hour - ARGV[2]), '+inf')) do
  out[#out + 1] = hour
  out[#out + 1] = call('HGETALL', P .. ':w:' .. hour)
end
return out
