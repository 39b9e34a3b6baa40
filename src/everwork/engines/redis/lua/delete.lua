-- Purpose: remove finished jobs with payload, result, history and dedupe key.
-- Inputs: now; ids. Returns: judgements, see parts/change.lua.
-- Parts: records traits running effects removal change
local out = change(2, function(id, record, r)
  if r.state == 'p' or r.state == 'r' then return 'w' end
  remove({id}, {record})
  return 'a'
end)
finish()
return out
