-- Purpose: delete finished jobs with their payloads, results, histories and dedupe keys.
-- Inputs: now; the number of attempts (0 if none are given); the latest attempt of each job; ids. Returns: judgments,
--   see parts/change.lua.
-- Parts: prelude records traits running effects removal change
local n, seen = tonumber(ARGV[2]), {}
for i = 1, n do seen[ARGV[2 + n + i]] = ARGV[2 + i] end
local out = change(3 + n, function(id, record, r)
  if r.state == 'p' or r.state == 'r' or (seen[id] or r.attempt) ~= r.attempt then return 'wrong_state' end
  remove({id}, {record})
  return 'accepted'
end)
finish()
return out
