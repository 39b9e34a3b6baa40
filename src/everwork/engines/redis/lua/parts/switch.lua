-- Purpose: a policy takes effect: what was not counted before is counted now, what a limit kept back may be looked at again.
-- Inputs: records, traits, running, effects.
local function all_queues_of(t) -- Those of dropped groups, too.
  local queues = queues_of(t)
  for _, queue in ipairs(call('SMEMBERS', P .. ':dropped')) do if type_of(queue) == t.type then queues[#queues + 1] = queue end end
  return queues
end

local function count_running(t) -- What is leased of a type that nobody has counted so far.
  local leased = call('ZRANGE', LEASES, 0, -1)
  for i = 1, #leased, CHUNK do
    for _, record in ipairs(fetch(S, {unpack(leased, i, math.min(i + CHUNK - 1, #leased))})) do
      local r = record and parse(sub(record, 31))
      if r and type_of(r.queue) == t.type then ran(r, 1) end
    end
  end
end

local function switch_limits(before, t)
  local was_counted, is_counted = before.max_running or before.max_per_key, t.max_running or t.max_per_key
  if before.max_per_key ~= t.max_per_key then
    for _, queue in ipairs(all_queues_of(t)) do -- The next claim finds out which of them are full.
      if call('EXISTS', full_key(queue)) == 1 then call('ZUNIONSTORE', lanes_key(queue), 2, lanes_key(queue), full_key(queue), 'AGGREGATE', 'MAX') end
      call('UNLINK', full_key(queue))
    end
  end
  if (was_counted ~= nil) == (is_counted ~= nil) and (before.max_per_key ~= nil) == (t.max_per_key ~= nil) then return end
  for _, queue in ipairs(all_queues_of(t)) do
    call('UNLINK', run_key(queue))
    if t.max_per_key then begin_count(queue) end
  end
  if is_counted then count_running(t) end
end

local function switch_finished(before, t)
  if t.keep_c or t.keep_f then call('SADD', P .. ':keeps', t.type) end
  if t.again_ms then
    call('SADD', P .. ':agains', t.type)
  else
    call('SREM', P .. ':agains', t.type)
    call('UNLINK', P .. ':again:' .. t.type)
  end
  local is_new = t.keep_c and not before.keep_c or t.keep_f and not before.keep_f or t.again_ms and before.again_rounds ~= t.again_rounds
  if is_new then call('SET', P .. ':unplaced', '') end -- The sweep walks over all jobs, from the first one on.
end
