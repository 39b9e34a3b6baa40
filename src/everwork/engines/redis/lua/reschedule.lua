-- Purpose: change the time at which pending jobs run.
-- Inputs: now; run_at or ''; delay; ids. Returns: judgments, see parts/change.lua.
-- Parts: prelude records traits running effects queues pending change
local run_at = tonumber(ARGV[2]) or now + tonumber(ARGV[3])
local out = change(4, function(id, record, r)
  if r.state ~= 'p' then return 'wrong_state' end
  move_pending(id, record, r, run_at, r.priority)
  return 'accepted'
end)
finish()
return out
