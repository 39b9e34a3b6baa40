-- Purpose: what workers did, by hour, and the counts.
-- Inputs: now; hours. Returns: now; counts as count.lua; then per hour its number and what, type and worker in one text, then the sum, flat.
-- Parts: records
local this = math.floor(now / 3600000)
local out = {NOW, call('HGETALL', P .. ':n')}
for _, hour in ipairs(call('ZRANGEBYSCORE', P .. ':hours', '(' .. (this - ARGV[2]), '+inf')) do
  out[#out + 1] = hour
  out[#out + 1] = call('HGETALL', P .. ':w:' .. hour)
end
return out
