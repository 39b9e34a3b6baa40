-- Purpose: take back leases that have lapsed, as long as no other attempt has begun; extend those that hold.
-- Inputs: now; lease_ms; per lease id, attempt. Returns: the letters of check.lua.
-- Parts: records traits running effects queues endings leases
local till = fmt('%.0f', now + tonumber(ARGV[2]))

local function restore_error(id) -- That of the attempt before.
  local entries = call('LRANGE', P .. ':h:' .. id, 0, -1)
  for i = #entries, 1, -1 do
    local kind, error = string.match(entries[i], '^%d+\n(%a+)\n%d*\n%d*\n%d*\n[^\n]*\n(.*)$')
    if kind == 'requeue' then break end
    if kind ~= 'release' then return put(ERRORS, id, '\0' .. error) end
  end
  drop(ERRORS, id)
end

local function undo_lapse(id, attempt, record, r)
  local entry = lapse_of(id, attempt)
  if not entry then return end
  local activated, worker = string.match(entry, '^%d+\n%a+\n%d+\n(%d*)\n%d*\n([^\n]*)\n')
  if r.state == 'p' then
    leave_pending(id, r)
  else
    call('ZREM', FAILED, id)
    call('ZREM', FAILED_AT, id)
  end
  call('LREM', P .. ':h:' .. id, 1, entry)
  restore_error(id)
  local run_at = math.min(tonumber(sub(record, 1, 15)), tonumber(activated))
  local tail = tail_of(r, 'r', r.attempt, r.attempts, r.max, '', activated, '', worker)
  put(STATES, id, fmt('%015.0f', run_at) .. sub(record, 16, 30) .. tail)
  call('ZADD', LEASES, till, id)
  move_count(r, 'r', 1)
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
