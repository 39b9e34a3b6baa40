-- Purpose: recount the running jobs of types with limits, and find out which lanes are full, in bounded steps, while
--   jobs start and end.
-- Inputs: records, traits, running, effects, endings. A job that starts or ends only changes a number by one, so a
--   wrong number stays wrong by the same amount. A recount copies the numbers and subtracts from the copy the leases
--   that exist at its start; the remainder is the error.
local RECOUNT, RECOUNTED = P .. ':recount', P .. ':recounted' -- The leases left to subtract; the queues to recount.
local RECOUNT_EVERY_MS = 60000

local function was_full_key(queue) return P .. ':wasfull:' .. queue end

local function all_queues_of(t) -- Includes the queues of dropped groups.
  local queues = queues_of(t)
  for _, queue in ipairs(call('SMEMBERS', P .. ':dropped')) do
    if type_of(queue) == t.type then queues[#queues + 1] = queue end
  end
  return queues
end

local function forget_recount(queue)
  call('UNLINK', error_key(queue), was_full_key(queue))
  call('SREM', RECOUNTED, queue)
end

local function copy_numbers(t)
  if not (t.max_running or t.max_per_key) then return end
  for _, queue in ipairs(all_queues_of(t)) do
    call('COPY', run_key(queue), error_key(queue), 'REPLACE')
    call('HSET', error_key(queue), FILLER, 0) -- Keeps the hash in existence while numbers may be added to it.
    if t.max_per_key then call('COPY', full_key(queue), was_full_key(queue), 'REPLACE') end
    call('SADD', RECOUNTED, queue)
  end
end

local function begin_recount()
  for _, queue in ipairs(call('SMEMBERS', RECOUNTED)) do forget_recount(queue) end
  for _, type in ipairs(call('SMEMBERS', P .. ':types')) do copy_numbers(trait_of(type)) end
  if call('EXISTS', RECOUNTED) == 1 then call('COPY', LEASES, RECOUNT, 'REPLACE') else call('UNLINK', RECOUNT) end
end

local function subtract(errors, r) -- r: a job leased when the recount started; its queue and lane never change.
  local mine = errors[r.queue]
  if mine == nil then
    mine = call('EXISTS', error_key(r.queue)) == 1 and {} or false
    errors[r.queue] = mine
  end
  if not mine then return end
  mine['\n'] = (mine['\n'] or 0) - 1
  if trait_for(r.queue).max_per_key and has_limit_key(r.lane) then mine[r.lane] = (mine[r.lane] or 0) - 1 end
end

-- Processes a bounded number of leases; returns false if one of their jobs was deleted, so that its queue is unknown.
local function subtract_leases()
  local popped, ids, errors = call('ZPOPMIN', RECOUNT, STEP), {}, {}
  for i = 1, #popped, 2 do
    if popped[i] ~= FILLER then ids[#ids + 1] = popped[i] end
  end
  for _, record in ipairs(fetch(STATES, ids)) do
    local r = record and parse(sub(record, 31))
    if not r then return false end
    subtract(errors, r)
  end
  for queue, mine in pairs(errors) do
    for lane, by in pairs(mine or {}) do
      if call('HINCRBY', error_key(queue), lane, by) == 0 then call('HDEL', error_key(queue), lane) end
    end
  end
  return true
end

local function repair_numbers(queue) -- Processes a bounded number of lanes; returns how many.
  local wrong, lanes = call('HRANDFIELD', error_key(queue), STEP, 'WITHVALUES'), {}
  for i = 1, #wrong, 2 do
    lanes[#lanes + 1] = wrong[i]
    if wrong[i] ~= FILLER then add_running(queue, wrong[i], -wrong[i + 1]) end
  end
  call_many('HDEL', error_key(queue), lanes)
  return #lanes
end

local function repair_full(queue) -- Reopens full lanes that have capacity; returns how many it checked, at most STEP.
  local popped, limit, lanes = call('ZPOPMIN', was_full_key(queue), STEP), trait_for(queue).max_per_key, {}
  for i = 1, #popped, 2 do lanes[#lanes + 1] = popped[i] end
  local numbers = numbers_of(queue, lanes)
  local open = {}
  for _, lane in ipairs(lanes) do
    if numbers[lane] < limit then open[#open + 1] = lane end
  end
  reopen_lanes(queue, open)
  return #lanes
end

local function repair_some() -- Returns whether there is more to do.
  for _, queue in ipairs(call('SMEMBERS', RECOUNTED)) do
    if repair_numbers(queue) >= STEP then return true end
    apply_running()
    if repair_full(queue) >= STEP then return true end
    forget_recount(queue)
  end
  return false
end

local function recount_some() -- Returns whether there is more to do.
  if not subtract_leases() then begin_recount() end
  return call('EXISTS', RECOUNT) == 1 or repair_some()
end

local function recount(is_wanted) -- Continues or starts a recount; returns whether there is more to do.
  local since = now - (call('HGET', P .. ':turns', '\ncounted') or 0)
  if is_wanted or since < 0 or since >= RECOUNT_EVERY_MS then
    call('HSET', P .. ':turns', '\ncounted', NOW)
    begin_recount()
  end
  return recount_some()
end
