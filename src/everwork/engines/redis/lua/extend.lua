-- Purpose: extend live leases.
-- Inputs: now; lease_ms; per lease id, attempt. Returns: the letters of check.lua.
-- Parts: prelude records leases
local till, leases = fmt('%.0f', now + tonumber(ARGV[2])), {}
local letters = judge_leases(3, function(id)
  leases[#leases + 1] = till
  leases[#leases + 1] = id
end)
allow_writes_when_full()
call_many('ZADD', LEASES, leases)
return letters
