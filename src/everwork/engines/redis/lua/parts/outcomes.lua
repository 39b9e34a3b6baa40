-- Purpose: end attempts; each outcome is accepted or refused separately.
-- Inputs: records, traits, effects, queues, endings, breakers, work; ARGV as in settle.lua.
-- A refused outcome is returned with the job's state, its latest attempt, and how the named attempt ended.
local completed, judged = {}, 0 -- The accepted completions, and the number of outcomes judged so far.
local n_completions = 0
local VALUES = 13 -- The number of values of an outcome other than a completion.

local function refuse(refused, number, id, attempt, r)
  refused[#refused + 1] = number
  if not r then
    refused[#refused + 1] = ''
    return
  end
  local end_kind = past_end(id, attempt)
  if not end_kind and attempt == r.attempt then
    end_kind = r.state == 'c' and 'complete' or (r.state == 'x' or r.state == 'f') and r.kind or nil
  end
  refused[#refused + 1] = table.concat({r.state, r.attempt, end_kind or ''}, '\n')
end

local function complete_all(at, refused) -- Completes different jobs; returns the next index in ARGV.
  local n = tonumber(ARGV[at])
  local ids, done, states, next_of, failed_before = {}, {}, {}, {}, {}
  for i = 1, n do ids[i] = ARGV[at + i] end
  local runs = runs_of(ids)
  local records, attempts_at = fetch(STATES, ids, runs), at + n
  local last_head, last_following, waited, bucket -- Kept because consecutive jobs are often alike.
  for i = 1, n do
    local record, attempt = records[i], ARGV[attempts_at + i]
    local tail = record and sub(record, 31)
    local r = tail and parse(tail)
    if r and r.state == 'r' and (attempt == r.attempt or attempt == '0') then
      local following = next_of[tail]
      if not following then
        local note, probe = note_of(r)
        following = {r = r, n = 0, wait = 0, activated = tonumber(r.activated), note = note, probe = probe,
          ended = ended_as(r, 'c'), measures = measures_of(r),
          tail = tail_of(r, 'c', r.attempt, r.attempts, r.max, '', r.activated, NOW, r.worker)}
        next_of[tail] = following
      end
      local k, head = #done + 1, sub(record, 1, 30)
      if head ~= last_head or following ~= last_following then
        last_head, last_following = head, following
        waited = math.max(0, following.activated - sub(record, 1, 15))
        bucket = bucket_of(WAIT, waited)
      end
      following.n = following.n + 1
      following.wait = following.wait + waited
      add(following.measures, bucket, 1)
      done[k], states[k] = ids[i], head .. following.tail
      completed[n_completions + i] = true
      local list = following.ended
      list[#list + 1] = ids[i]
      if ids[i] == following.probe then following.note.has_probe_completed = true end
      if r.attempt ~= '1' then failed_before[#failed_before + 1] = ids[i] end
    else
      refuse(refused, judged + i, ids[i], attempt, r)
    end
  end
  call_many('ZREM', LEASES, done)
  store(STATES, done, states, #done == n and runs or nil)
  for _, id in ipairs(failed_before) do drop(ERRORS, id) end
  for _, following in pairs(next_of) do
    move_count(following.r, 'c', following.n)
    if following.note then following.note.completed = following.note.completed + following.n end
    local spent = math.max(0, now - following.activated)
    add(following.measures, bucket_of(EXECUTION, spent), following.n)
    add_work(following.r, 'completed', following.n, following.n * spent, following.wait)
  end
  at = attempts_at + n + 1
  local results = tonumber(ARGV[at])
  for i = at + 1, at + 2 * results, 2 do
    local number = tonumber(ARGV[i])
    if completed[n_completions + number] then put(RESULTS, ids[number], ARGV[i + 1]) end
  end
  n_completions, judged = n_completions + n, judged + n
  return at + 1 + 2 * results
end

local function is_live(r, attempt) return r.state == 'r' and (attempt == '0' or attempt == r.attempt) end
local function guard_of(r) return r.attempt .. ' ' .. r.attempts .. ' ' .. r.max end

local function decisions_fit(at, segments) -- Called before anything is written.
  for _ = 1, segments do
    local n = tonumber(ARGV[at + 1])
    if ARGV[at] == 'complete' then
      at = at + 2 + 2 * n
      at = at + 1 + 2 * tonumber(ARGV[at])
    else
      for i = at + 2, at + 1 + VALUES * n, VALUES do
        local id, attempt, verdict, guard = unpack(ARGV, i, i + 3)
        if verdict ~= 'release' then
          local _, tail = state_of(id)
          local r = tail and parse(tail)
          if r and is_live(r, attempt) and guard ~= guard_of(r) then return false end
        end
      end
      at = at + 2 + VALUES * n
    end
  end
  return true
end

local function apply(id, record, r, outcome) -- Applies one outcome of a live attempt, other than a completion.
  local _, _, verdict, _, delay, max, kind, error, code, variables, is_counted, measured_as, traceback = unpack(outcome)
  local run_at = tonumber(sub(record, 1, 15))
  local spent = kind ~= 'lapse' and math.max(0, now - r.activated) or nil -- Unknown after a lease expiry.
  local waited = math.max(0, r.activated - run_at)
  local noted = kind == 'lapse' and lapse_text(error, run_at, r.attempts)
    or traceback ~= '' and error .. '\0' .. traceback or error
  call('ZREM', LEASES, id)
  if is_counted == '1' then note_failure(id, r) end
  if variables ~= '' then set_variables(id, variables) end
  if verdict == 'fail' then
    put(STATES, id, sub(record, 1, 30) .. tail_of(r, 'f', r.attempt, r.attempts, max, kind, r.activated, NOW, r.worker))
    put(ERRORS, id, code .. '\0' .. error)
    call('ZADD', FAILED, 0, id)
    call('ZADD', FAILED_AT, NOW, id)
    record_end(id, r.attempt, kind, r.activated, '', r.worker, noted)
    add_failure(r, 'failed', spent, waited, measured_as)
    table.insert(ended_as(r, 'f'), id)
    schedule_requeue(id, r, kind, NOW)
    move_count(r, 'f', 1)
    return
  end
  local attempts, retry_at = r.attempts, ''
  if verdict == 'release' then
    max, attempts = r.max, r.attempts - 1
  else
    run_at = now + tonumber(delay)
    retry_at = fmt('%.0f', run_at)
    put(ERRORS, id, '\0' .. error)
    add_failure(r, 'retried', spent, waited, measured_as)
  end
  local tail = tail_of(r, 'p', r.attempt, attempts, max, '', '', '', '')
  put(STATES, id, fmt('%015.0f', run_at) .. sub(record, 16, 30) .. tail)
  enter_pending(id, r, run_at)
  record_end(id, r.attempt, kind, r.activated, retry_at, r.worker, noted)
  move_count(r, 'p', 1)
end

local function apply_all(at, refused) -- Applies other outcomes of different jobs; returns the next index in ARGV.
  local n = tonumber(ARGV[at])
  for i = 1, n do
    local outcome = {unpack(ARGV, at + 1 + VALUES * (i - 1), at + VALUES * i)}
    local id, attempt = outcome[1], outcome[2]
    local record, tail = state_of(id)
    local r = tail and parse(tail)
    if r and is_live(r, attempt) then apply(id, record, r, outcome) else refuse(refused, judged + i, id, attempt, r) end
  end
  judged = judged + n
  return at + 1 + VALUES * n
end
