-- Purpose: change the priority of pending jobs.
-- Inputs: now; priority; ids. Returns: judgments, see parts/change.lua.
-- Parts: prelude records traits running effects queues pending change
local out = change(3, function(id, record, r)
  if r.state ~= 'p' then return 'wrong_state' end
  move_pending(id, record, r, tonumber(sub(record, 1, 15)), ARGV[2])
  return 'accepted'
end)
finish()
return out
