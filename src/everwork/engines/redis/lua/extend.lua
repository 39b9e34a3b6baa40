-- Purpose: let live leases end later, or earlier.
-- Inputs: now; lease_ms; per lease id, attempt. Returns: letters as check.lua.
-- Parts: records leases
local till, leases = fmt('%.0f', now + tonumber(ARGV[2])), {}
local letters = judge_leases(3, function(id)
  leases[#leases + 1] = till
  leases[#leases + 1] = id
end)
write_though_full()
many('ZADD', LEASES, leases)
return letters
