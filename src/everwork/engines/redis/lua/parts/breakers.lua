-- Purpose: update breakers after attempts have ended, by the rules of core/breaker.py with the numbers of each type.
-- Inputs: records, traits, effects. settle_breakers() runs after all outcomes, so that completions count before
--   failures, and before claims.
local noted = {} -- By type: the number of ended attempts; false if the breaker has nothing to count.

local function note_of(r) -- The counter of the job's type, and the probe's id if this may be its attempt.
  local t = trait_for(r.queue)
  local note = noted[t.type]
  if note == nil then
    note = (t.breaker_failures or t.breaker or t.failures) and {completed = 0, failed = 0} or false
    noted[t.type] = note
  end
  return note, note and t.probe_attempt == r.attempt and t.probe or nil
end

local function note_failure(id, r)
  local note, probe = note_of(r)
  if not note then return end
  note.failed = note.failed + 1
  if id == probe then note.has_probe_failed = true end
end

local function close_breaker(t)
  call('HDEL', t.key, 'breaker', 'failures', 'probe')
  if t.breaker then wake(t) end
  t.breaker, t.failures, t.probe, t.probe_attempt = nil, nil, nil, nil
end

local function open_breaker(t, open_ms)
  t.breaker, t.probe, t.probe_attempt = now + open_ms, nil, nil
  call('HDEL', t.key, 'probe')
  call('HSET', t.key, 'breaker', fmt('%.0f', t.breaker))
end

local function fail_closed(t, failed)
  t.failures = (t.failures or 0) + failed
  call('HSET', t.key, 'failures', t.failures)
  if t.failures >= t.breaker_failures then open_breaker(t, t.breaker_ms) end
end

local function settle_breakers()
  for type, note in pairs(noted) do
    local t = note and trait_of(type)
    if note and note.completed > 0 and (note.has_probe_completed or t.failures and not t.breaker) then
      close_breaker(t)
    end
    if note and note.has_probe_failed then
      open_breaker(t, t.breaker_ms or @BREAKER_MS_DEFAULT@)
    elseif note and note.failed > 0 and t.breaker_failures and not t.breaker then
      fail_closed(t, note.failed)
    end
  end
end
