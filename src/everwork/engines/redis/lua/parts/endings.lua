-- Purpose: cancel a job, record the end of an attempt, replace a job's variables, requeue a dead letter or a job that
--   waits for a retry.
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

local function lapse_of(id, attempt) -- The history entry of the attempt's lease expiry, if it expired.
  for _, entry in ipairs(call('LRANGE', P .. ':h:' .. id, 0, -1)) do
    if string.match(entry, '^(%d+)\nlapse\n') == attempt then return entry end
  end
end

-- The entry of an expired lease has, after its error, what reclaim.lua needs to undo the expiry: when the job became
-- due, and its attempts. Entries written by another store or version end with their error. For other outcomes, the
-- error is followed by the traceback, if there is one.
local function lapse_text(error, due, attempts) return error .. '\0' .. fmt('%.0f', due) .. ' ' .. attempts end

local function lapse_parts(text)
  local error, due, attempts = string.match(text, '^(.*)%z(%d+) (%d+)$')
  return error or text, tonumber(due), tonumber(attempts)
end

local function set_variables(id, given) -- Keeps the rare values in the first line of the payload.
  local rare = string.match(call('HGET', PAYLOADS .. sub(id, 1, 13), id), '^%[[^\n]*\n')
  if rare then given = rare .. (string.match(given, '^%[[^\n]*\n(.*)$') or given) end
  put(PAYLOADS, id, given)
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
local function expire() -- Cancels expired pending jobs; returns how many, and whether there may be more.
  local due = call('ZRANGEBYSCORE', EXPIRY, '-inf', NOW, 'LIMIT', 0, STEP)
  if #due == 0 then return 0, false end
  call('ZREMRANGEBYRANK', EXPIRY, 0, #due - 1)
  return cancel_pending(due, 'expire', 'expired'), #due == STEP
end

-- Resets attempts to 0, makes the job due at `run_at`, clears the error and records the requeue in the history.
local function enter_again(id, record, r, run_at, max, error)
  put(STATES, id, fmt('%015.0f', run_at) .. sub(record, 16, 30) .. tail_of(r, 'p', r.attempt, 0, max, '', '', '', ''))
  drop(ERRORS, id)
  enter_pending(id, r, run_at)
  record_end(id, r.attempt, 'requeue', '', '', '', error or '')
end

local function requeue(id, record, r, max, error) -- A dead letter.
  call('ZREM', FAILED, id)
  call('ZREM', FAILED_AT, id)
  enter_again(id, record, r, now, max, error)
  move_count(r, 'p', 1)
end

local function is_tried(id, r) -- Whether a pending job had an attempt since its creation or its last requeue.
  local last = r.attempt ~= '0' and call('LINDEX', P .. ':h:' .. id, -1)
  return last and string.match(last, '^%d+\n(%a+)\n') ~= 'requeue'
end

local function requeue_waiting(id, record, r, note) -- A pending job.
  leave_pending(id, r)
  enter_again(id, record, r, math.min(tonumber(sub(record, 1, 15)), now), r.created_max, note)
end
