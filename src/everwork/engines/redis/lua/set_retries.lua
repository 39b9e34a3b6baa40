-- Purpose: set the number of attempts that a job has left.
-- Inputs: now; retries; the limit of counted attempts (ATTEMPTS_MAX); id. Returns: a judgment, see parts/change.lua.
-- Parts: prelude records traits running effects queues endings change
local retries, attempts_max = tonumber(ARGV[2]), tonumber(ARGV[3])
local function raised(r, more) return math.max(tonumber(r.attempts), math.min(r.attempts + more, attempts_max)) end
local out = change(4, function(id, record, r)
  if r.state == 'f' then
    if retries == 0 then return 'repeated' end
    requeue(id, record, r, retries)
    return 'accepted'
  end
  local max
  if r.state == 'p' and retries > 0 then max = raised(r, retries)
  elseif r.state == 'r' then max = raised(r, math.max(retries, 1) - 1)
  else return 'wrong_state' end
  local tail = tail_of(r, r.state, r.attempt, r.attempts, max, r.kind, r.activated, r.finished, r.worker)
  put(STATES, id, sub(record, 1, 30) .. tail)
  return 'accepted'
end)
finish()
return out
