-- Purpose: cancel a job, record the end of an attempt, requeue a dead letter.
-- Inputs: records, effects, queues.
local HISTORY_MAX = @HISTORY_ENTRIES_MAX@

local function record_end(id, attempt, kind, activated, retry_at, worker, error)
  local key = P .. ':h:' .. id
  local n = call('RPUSH', key, table.concat({attempt, kind, NOW, activated, retry_at, worker, error}, '\n'))
  if n > HISTORY_MAX then call('LTRIM', key, -HISTORY_MAX, -1) end
end

local function past_end(id, attempt) -- How an attempt ended; nil if it is not in the history.
  for _, entry in ipairs(call('LRANGE', P .. ':h:' .. id, 0, -1)) do
    local number, kind = string.match(entry, '^(%d+)\n(%a+)\n')
    if number == attempt and kind ~= 'requeue' then return kind end
  end
end

local function cancel(id, record, r, kind, reason) -- A pending or processing job.
  if r.state == 'p' then leave_pending(id, r) else call('ZREM', LEASES, id) end
  put(STATES, id, sub(record, 1, 30) .. tail_of(r, 'x', r.attempt, r.attempts, r.max, kind, r.activated, NOW, r.worker))
  if reason == '' then drop(ERRORS, id) else put(ERRORS, id, '\0' .. reason) end
  call('ZADD', CANCELLED, 0, id)
  move_count(r, 'x', 1)
  table.insert(ended_as(r, 'c'), id)
end

local function cancel_pending(ids, kind, reason)
  local cancelled, records = 0, fetch(STATES, ids)
  for i, id in ipairs(ids) do
    local record = records[i]
    local r = record and parse(sub(record, 31))
    if r and r.state == 'p' then
      cancel(id, record, r, kind, reason)
      cancelled = cancelled + 1
    end
  end
  return cancelled
end

local STEP = @SWEEP_STEP_MAX@
local function expire() -- Cancels expired pending jobs: how many, and whether there may be more.
  local due = call('ZRANGEBYSCORE', EXPIRY, '-inf', NOW, 'LIMIT', 0, STEP)
  if #due == 0 then return 0, false end
  call('ZREMRANGEBYRANK', EXPIRY, 0, #due - 1)
  return cancel_pending(due, 'expire', 'expired'), #due == STEP
end

local function requeue(id, record, r, max, error) -- A dead letter.
  put(STATES, id, fmt('%015.0f', now) .. sub(record, 16, 30) .. tail_of(r, 'p', r.attempt, 0, max, '', '', '', ''))
  drop(ERRORS, id)
  call('ZREM', FAILED, id)
  enter_pending(id, r, now)
  record_end(id, r.attempt, 'requeue', '', '', '', error or '')
  move_count(r, 'p', 1)
end
