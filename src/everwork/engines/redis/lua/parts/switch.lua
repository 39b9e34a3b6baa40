-- Purpose: apply a changed policy: count jobs that were not counted before, and recheck jobs that an earlier limit
--   held back.
-- Inputs: records, traits, running, effects, endings, recount.
local function switch_limits(before, t)
  local was_counted, is_counted = before.max_running or before.max_per_key, t.max_running or t.max_per_key
  if before.max_per_key ~= t.max_per_key then
    for _, queue in ipairs(all_queues_of(t)) do -- The next claim finds out which lanes are full.
      if call('EXISTS', full_key(queue)) == 1 then
        call('ZUNIONSTORE', lanes_key(queue), 2, lanes_key(queue), full_key(queue), 'AGGREGATE', 'MAX')
      end
      call('UNLINK', full_key(queue))
    end
  end
  if (was_counted ~= nil) == (is_counted ~= nil) and (before.max_per_key ~= nil) == (t.max_per_key ~= nil) then
    return
  end
  for _, queue in ipairs(all_queues_of(t)) do
    call('UNLINK', run_key(queue))
    forget_recount(queue)
    if t.max_per_key then begin_count(queue) end
  end
  if is_counted then begin_recount() end
end

local function switch_finished(before, t)
  if t.keep_c or t.keep_f then call('SADD', P .. ':keeps', t.type) end
  if t.requeue_ms then
    call('SADD', P .. ':agains', t.type)
  else
    call('SREM', P .. ':agains', t.type)
    call('UNLINK', P .. ':again:' .. t.type)
  end
  local is_new = t.keep_c and not before.keep_c or t.keep_f and not before.keep_f
    or t.requeue_ms and before.requeue_rounds ~= t.requeue_rounds
  if is_new then call('SET', P .. ':unplaced', '') end -- The sweep scans all jobs, starting with the first.
end
