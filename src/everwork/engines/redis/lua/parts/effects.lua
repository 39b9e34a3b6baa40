-- Purpose: what writing scripts collect on their way and write at their end: counts, statistics, wake-ups, retention.
-- Inputs: records, traits, running. finish() must be the last thing that a script writes.
local counts, work, measured, woken, waiting, has_finished = {}, {}, {}, {}, {}, false
local ended = {} -- What retention will look at, by the name of its list.

local function count(r, state, by)
  local field = state .. '\n' .. r.queue .. '\n' .. tenant_of(r.lane)
  counts[field] = (counts[field] or 0) + by
  if state == 'r' then ran(r, by) end
end

local function move(r, state, by)
  count(r, r.state, -by)
  count(r, state, by)
end

local function wake(t) -- Whoever waits for jobs of a type.
  for _, queue in ipairs(queues_of(t)) do woken[queue] = true end
end

local function kept_as(t, kept) -- The name of the list of what is finished ('c' or 'f'): a type that keeps its jobs otherwise has its own.
  return t['keep_' .. kept] and kept .. ':' .. t.type or kept
end

local function ended_as(r, kept)
  local name = kept_as(trait_for(r.queue), kept)
  local list = ended[name]
  if not list then list = {}; ended[name] = list end
  return list
end

local function await_return(id, r, kind, finished) -- A dead letter that may come back by itself.
  local t = trait_for(r.queue)
  if t.again_ms and kind ~= 'reject' then call('ZADD', P .. ':again:' .. t.type, finished, id) end
end

local function appear_again(queue) -- Dead letters of a group that comes back may come back, too.
  if call('SREM', P .. ':dropped', queue) == 1 and trait_for(queue).again_ms then call('SET', P .. ':unplaced', '') end
end

local function stay(id, r) -- A dead letter that will not come back.
  local t = trait_for(r.queue)
  if t.again_ms then call('ZREM', P .. ':again:' .. t.type, id) end
end

local function ring(field, channel, said) -- Only who waits is told: whoever got less than he asked for has left a flag.
  if call('HDEL', P .. ':bell', field) == 1 then redis.pcall('PUBLISH', P .. channel, said) end
end

local function flush_ended(kept, ids)
  for i = 1, #ids, 500 do
    call('RPUSH', P .. ':old:' .. kept, fmt('%015.0f', now) .. ' ' .. table.concat(ids, ' ', i, math.min(i + 499, #ids)))
  end
  if #ids > 0 then has_finished = true end
end

local function flush_work() -- One hash per hour, whose first field makes the hour known; what is measured stands apart, by type.
  local hour = fmt('%.0f', math.floor(now / 3600000))
  for who, w in pairs(work) do
    for what, by in pairs(w) do
      if by ~= 0 and call('HINCRBY', P .. ':w:' .. hour, what .. '\n' .. who, fmt('%.0f', by)) == by then
        call('ZADD', P .. ':hours', hour, hour)
      end
    end
  end
  for type, m in pairs(measured) do
    local key = P .. ':m:' .. hour .. ':' .. type
    for what, by in pairs(m) do call('HINCRBY', key, what, fmt('%.0f', by)) end
  end
end

local function finish()
  write_running()
  for queue in pairs(freed) do if call('EXISTS', lanes_key(queue)) == 1 then woken[queue] = true end end
  for field, by in pairs(counts) do
    if by ~= 0 and call('HINCRBY', P .. ':n', field, by) == 0 then call('HDEL', P .. ':n', field) end
  end
  if next(work) then flush_work() end
  for kept, ids in pairs(ended) do flush_ended(kept, ids) end
  if next(woken) then call('HINCRBY', P .. ':bell', 'work', 1) end
  for queue in pairs(woken) do ring('w' .. queue, ':work', type_of(queue)) end
  if has_finished then
    call('HINCRBY', P .. ':bell', 'done', 1)
    ring('d', ':done', '')
  end
  -- Last, so that nobody is woken by what he has just been told.
  for queue in pairs(waiting) do call('HSETNX', P .. ':bell', 'w' .. queue, 1) end
end
