-- Purpose: effects that scripts collect and write at their end: counts, statistics, wake-ups, retention.
-- Inputs: records, traits, running. finish() must be the last write of a script.
local counts, work, measured, woken, waiting, has_finished = {}, {}, {}, {}, {}, false
local ended = {} -- The ids of finished jobs, by the name of the list that retention reads.

local function count(r, state, by)
  local field = state .. '\n' .. r.queue .. '\n' .. tenant_of(r.lane)
  counts[field] = (counts[field] or 0) + by
  if state == 'r' then count_running(r, by) end
end

local function move_count(r, state, by)
  count(r, r.state, -by)
  count(r, state, by)
end

local function wake(t) -- Wakes every process that is waiting for jobs of a type.
  for _, queue in ipairs(queues_of(t)) do woken[queue] = true end
end

-- The name of the list of finished jobs ('c' or 'f'): a type with its own retention has its own list.
local function kept_as(t, kept)
  return t['keep_' .. kept] and kept .. ':' .. t.type or kept
end

local function ended_as(r, kept)
  local name = kept_as(trait_for(r.queue), kept)
  local list = ended[name]
  if not list then list = {}; ended[name] = list end
  return list
end

local function schedule_requeue(id, r, kind, finished) -- For a dead letter, if its type's policy requeues it.
  local t = trait_for(r.queue)
  if t.requeue_ms and kind ~= 'reject' then call('ZADD', P .. ':again:' .. t.type, finished, id) end
end

local function restore_group(queue) -- Its dead letters may be requeued automatically again.
  if call('SREM', P .. ':dropped', queue) == 1 and trait_for(queue).requeue_ms then
    call('SET', P .. ':unplaced', '')
  end
end

local function unschedule_requeue(id, r)
  local t = trait_for(r.queue)
  if t.requeue_ms then call('ZREM', P .. ':again:' .. t.type, id) end
end

-- Only waiting processes are notified: a process that got fewer jobs than it requested has left a flag.
local function notify(field, channel, message)
  if call('HDEL', P .. ':bell', field) == 1 then redis.pcall('PUBLISH', P .. channel, message) end
end

local function flush_ended(kept, ids)
  for i = 1, #ids, 500 do
    local text = table.concat(ids, ' ', i, math.min(i + 499, #ids))
    call('RPUSH', P .. ':old:' .. kept, fmt('%015.0f', now) .. ' ' .. text)
  end
  if #ids > 0 then has_finished = true end
end

-- There is one hash of work per hour, whose first field registers the hour, and one of measures per hour and type.
-- Work is counted by type and worker; in an hour with very many workers, further ones are counted together.
local WORK_NAMES = {'completed', 'failed', 'retried', 'execution', 'wait'}
local WORK_FIELDS_MAX = 3 * @WORKER_ROWS_MAX@ -- Most workers have three of the five sums.

local function counted_as(key, worker)
  if call('HLEN', key) < WORK_FIELDS_MAX then return worker end
  for _, what in ipairs(WORK_NAMES) do
    if call('HEXISTS', key, what .. '\n' .. worker) == 1 then return worker end
  end
  return string.match(worker, '^[^\n]*\n') .. '@OTHER_WORKERS@'
end

local function flush_work()
  local hour = fmt('%.0f', math.floor(now / 3600000))
  local key = P .. ':w:' .. hour
  for worker, sums in pairs(work) do
    worker = counted_as(key, worker)
    for what, by in pairs(sums) do
      if by ~= 0 and call('HINCRBY', key, what .. '\n' .. worker, fmt('%.0f', by)) == by then
        call('ZADD', P .. ':hours', hour, hour)
      end
    end
  end
  for type, sums in pairs(measured) do
    local key = P .. ':m:' .. hour .. ':' .. type
    for what, by in pairs(sums) do call('HINCRBY', key, what, fmt('%.0f', by)) end
  end
end

local function finish()
  write_running()
  for queue in pairs(freed) do
    if call('EXISTS', lanes_key(queue)) == 1 then woken[queue] = true end
  end
  for field, by in pairs(counts) do
    if by ~= 0 and call('HINCRBY', P .. ':n', field, by) == 0 then call('HDEL', P .. ':n', field) end
  end
  if next(work) then flush_work() end
  for kept, ids in pairs(ended) do flush_ended(kept, ids) end
  if next(woken) then call('HINCRBY', P .. ':bell', 'work', 1) end
  for queue in pairs(woken) do notify('w' .. queue, ':work', type_of(queue)) end
  if has_finished then
    call('HINCRBY', P .. ':bell', 'done', 1)
    notify('d', ':done', '')
  end
  -- This comes last, so that no process is woken by jobs that its own call has just returned.
  for queue in pairs(waiting) do call('HSETNX', P .. ':bell', 'w' .. queue, 1) end
end
