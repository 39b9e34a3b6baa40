-- Purpose: withdraw a worker's parked demands (see parts/claim.lua): after this, no create hands a job over to it.
-- Inputs: now; worker; types.
-- Returns: nothing.
-- Parts: prelude records
allow_writes_when_full()
for i = 3, #ARGV do
  local key = P .. ':t:' .. ARGV[i]
  local parked = call('HGET', key, 'parked')
  if parked and string.match(parked, '^%d+ %x+ %d+ (.*)$') == ARGV[2] then call('HDEL', key, 'parked') end
end
