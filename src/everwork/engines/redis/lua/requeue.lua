-- Purpose: requeue dead letters, with the max_attempts that they were created with.
-- Inputs: now; '1' to also requeue pending jobs that had an attempt, otherwise '0'; new variables, a payload without
--   rare values, or '' to keep them; a note for the history; ids. Returns: judgments, see parts/change.lua.
-- Parts: prelude records traits running effects queues endings change
local is_waiting, variables, note = ARGV[2] == '1', ARGV[3], ARGV[4]
local out = change(5, function(id, record, r)
  if r.state == 'f' then
    requeue(id, record, r, r.created_max, note)
  elseif is_waiting and r.state == 'p' and is_tried(id, r) then
    requeue_waiting(id, record, r, note)
  else
    return 'wrong_state'
  end
  if variables ~= '' then set_variables(id, variables) end
  return 'accepted'
end)
finish()
return out
