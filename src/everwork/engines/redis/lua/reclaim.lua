-- Purpose: restore expired leases for which no other attempt has started, and undo what their expiry counted; extend
--   leases that are still held.
-- Inputs: now; lease_ms; per lease id, attempt. Returns: the letters of check.lua.
-- Parts: prelude records traits running effects queues endings work leases
local till = fmt('%.0f', now + tonumber(ARGV[2]))

local function restore_error(id) -- Restores the error of the previous attempt.
  local entries = call('LRANGE', P .. ':h:' .. id, 0, -1)
  for i = #entries, 1, -1 do
    local kind, error = string.match(entries[i], '^%d+\n(%a+)\n%d*\n%d*\n%d*\n[^\n]*\n(.*)$')
    if kind == 'requeue' then break end
    if kind ~= 'release' then return put(ERRORS, id, '\0' .. string.match(error, '^[^%z]*')) end
  end
  drop(ERRORS, id)
end

local function forget_requeue(id, attempt) -- Removes the requeue that followed the expiry.
  local key = P .. ':h:' .. id
  local last = call('LINDEX', key, -1)
  local note = last and string.match(last, '^' .. attempt .. '\nrequeue\n%d*\n%d*\n%d*\n[^\n]*\n(.*)$')
  if not note then return end
  call('RPOP', key)
  if note == 'automatic' then put(REQUEUE_ROUNDS, id, call('HGET', REQUEUE_ROUNDS .. sub(id, 1, 13), id) - 1) end
end

local function less(key, field, by) -- Subtracts from a sum, unless its hour has been deleted.
  if by > 0 and call('HEXISTS', key, field) == 1 and call('HINCRBY', key, field, fmt('%.0f', -by)) == 0 then
    call('HDEL', key, field)
  end
end

local function uncount(r, at_ms, activated, retry_at, worker, due) -- Undoes add_failure.
  local hour, type = fmt('%.0f', math.floor(at_ms / 3600000)), trait_for(r.queue).type
  local waited = math.max(0, activated - due)
  local sums, whose = P .. ':w:' .. hour, '\n' .. type .. '\n' .. worker
  local ended = retry_at == '' and 'failed' or 'retried'
  -- In an hour with very many workers, some of them are counted together, see parts/effects.lua.
  if call('HEXISTS', sums, ended .. whose) == 0 then whose = '\n' .. type .. '\n@OTHER_WORKERS@' end
  less(sums, ended .. whose, 1)
  less(sums, 'wait' .. whose, waited)
  local measures = P .. ':m:' .. hour .. ':' .. type
  less(measures, bucket_of(WAIT, waited), 1)
  less(measures, '@LAPSED_NAME@', 1)
end

local function undo_lapse(id, attempt, record, r)
  local entry = lapse_of(id, attempt)
  if not entry then return end
  local at_ms, activated, retry_at, worker, error =
    string.match(entry, '^%d+\n%a+\n(%d+)\n(%d*)\n(%d*)\n([^\n]*)\n(.*)$')
  local _, due, attempts = lapse_parts(error)
  if r.state == 'p' then
    leave_pending(id, r)
  else
    call('ZREM', FAILED, id)
    call('ZREM', FAILED_AT, id)
    unschedule_requeue(id, r)
  end
  forget_requeue(id, attempt)
  call('LREM', P .. ':h:' .. id, 1, entry)
  restore_error(id)
  local run_at = due or math.min(tonumber(sub(record, 1, 15)), tonumber(activated))
  attempts = attempts or math.max(r.attempts, 1)
  local tail = tail_of(r, 'r', r.attempt, attempts, math.max(r.max, attempts), '', activated, '', worker)
  put(STATES, id, fmt('%015.0f', run_at) .. sub(record, 16, 30) .. tail)
  call('ZADD', LEASES, till, id)
  move_count(r, 'r', 1)
  if due then uncount(r, tonumber(at_ms), tonumber(activated), retry_at, worker, due) end
end

allow_writes_when_full()
for i = 3, #ARGV, 2 do
  local record, tail = state_of(ARGV[i])
  local r = tail and parse(tail)
  if r and r.attempt == ARGV[i + 1] and (r.state == 'p' or r.state == 'f') then
    undo_lapse(ARGV[i], ARGV[i + 1], record, r)
  end
end
local letters = judge_leases(3, function(id) call('ZADD', LEASES, till, id) end)
finish()
return letters
