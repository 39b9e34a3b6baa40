-- Purpose: end expired leases as decided by the core; this is the write half of a sweep.
-- Inputs: now; for each lease, the values of an outcome (see settle.lua).
-- Returns: the number of leases ended; a lease that was extended, ended or changed since it was read is left for the
--   next sweep.
-- Parts: prelude records traits running effects queues endings breakers work outcomes
local ended_leases = 0
for i = 2, #ARGV, VALUES do
  local outcome = {unpack(ARGV, i, i + VALUES - 1)}
  local id = outcome[1]
  local record, tail = state_of(id)
  local r = tail and parse(tail)
  if r and is_live(r, outcome[2]) and outcome[4] == guard_of(r) and tonumber(call('ZSCORE', LEASES, id)) <= now then
    apply(id, record, r, outcome)
    ended_leases = ended_leases + 1
  end
end
settle_breakers()
finish()
return ended_leases
