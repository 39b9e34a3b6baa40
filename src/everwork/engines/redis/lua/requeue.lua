-- Purpose: requeue dead letters, with the attempts that they were created with.
-- Inputs: now; ids. Returns: judgements, see parts/change.lua.
-- Parts: records traits running effects queues endings change
local out = change(2, function(id, record, r)
  if r.state ~= 'f' then return 'wrong_state' end
  requeue(id, record, r, r.created_max)
  return 'accepted'
end)
finish()
return out
