-- Purpose: cancel pending and processing jobs.
-- Inputs: now; reason; ids. Returns: judgments, see parts/change.lua.
-- Parts: prelude records traits running effects queues endings change
local out = change(3, function(id, record, r)
  if r.state == 'x' then return 'repeated' end
  if r.state ~= 'p' and r.state ~= 'r' then return 'wrong_state' end
  cancel(id, record, r, 'cancel', ARGV[2])
  return 'accepted'
end)
finish()
return out
