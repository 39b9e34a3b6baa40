-- Purpose: requeue dead letters, with the attempts that they were created with.
-- Inputs: now; '1' to requeue also pending jobs that were tried, else '0'; ids. Returns: judgements, see
--   parts/change.lua.
-- Parts: records traits running effects queues endings change
local is_waiting = ARGV[2] == '1'
local out = change(3, function(id, record, r)
  if r.state == 'f' then
    requeue(id, record, r, r.created_max)
  elseif is_waiting and r.state == 'p' and is_tried(id, r) then
    requeue_waiting(id, record, r)
  else
    return 'wrong_state'
  end
  return 'accepted'
end)
finish()
return out
