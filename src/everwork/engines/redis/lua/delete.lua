-- Purpose: delete finished jobs with their payloads, results, histories and dedupe keys.
-- Inputs: now; ids. Returns: judgments, see parts/change.lua.
-- Parts: records traits running effects removal change
local out = change(2, function(id, record, r)
  if r.state == 'p' or r.state == 'r' then return 'wrong_state' end
  remove({id}, {record})
  return 'accepted'
end)
finish()
return out
