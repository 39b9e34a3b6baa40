-- Purpose: change the run_at or priority of a pending job. Inputs: records, effects, queues.
local function move_pending(id, record, r, run_at, priority)
  local moved = setmetatable({priority = priority}, {__index = r})
  leave_pending(id, r)
  local tail = tail_of(moved, 'p', r.attempt, r.attempts, r.max, '', '', '', '')
  put(STATES, id, fmt('%015.0f', run_at) .. sub(record, 16, 30) .. tail)
  enter_pending(id, moved, run_at)
end
