-- Purpose: list the ids of jobs in given states, newest first. Inputs: records.
-- The maximum number of live jobs to sort; if there are more, the buckets are scanned.
local FEW = @LIST_SCAN_MAX@

local function add_keys(queue, keys, futures)
  keys[#keys + 1] = P .. ':future:' .. queue
  futures[keys[#keys]] = true
  for _, lanes in ipairs({P .. ':lanes:', P .. ':full:'}) do
    for _, lane in ipairs(call('ZRANGE', lanes .. queue, 0, -1)) do
      keys[#keys + 1] = P .. ':ready:' .. queue .. '\n' .. lane
    end
  end
end

-- The keys of all sets of pending jobs of a type ('' for all), found through the job counts, and whether there are too
-- many; the keys of scheduled jobs are also added to `futures`.
local function pending_keys(futures, type)
  local keys, seen = {}, {}
  for _, field in ipairs(call('HKEYS', P .. ':n')) do
    local queue = string.match(field, '^p\n([^\n]*)')
    if queue and not seen[queue] and (type == '' or type_of(queue) == type) then
      seen[queue] = true
      add_keys(queue, keys, futures)
      if #keys > FEW then return keys, true end
    end
  end
  return keys, false
end

-- Adds the ids of live jobs to `ids`; false if there are too many to sort.
local function live_ids(states, below, ids, due)
  local keys, futures, too_many = {}, {}, false
  if string.find(states, 'p', 1, true) then keys, too_many = pending_keys(futures, '') end
  if string.find(states, 'r', 1, true) then keys[#keys + 1] = LEASES end
  local total = 0
  for _, key in ipairs(keys) do
    if too_many then return false end
    total = total + (futures[key] and call('ZCOUNT', key, '-inf', due) or call('ZCARD', key))
    if total > FEW then return false end
  end
  for _, key in ipairs(keys) do
    for _, id in ipairs(futures[key] and call('ZRANGEBYSCORE', key, '-inf', due) or call('ZRANGE', key, 0, -1)) do
      if id < below then ids[#ids + 1] = id end -- The placeholder among the leases sorts after every id.
    end
  end
  return true
end

local function cut(ids, step) -- Returns the first ids, and the next cursor.
  if #ids <= step then return ids, '' end
  for i = #ids, step + 1, -1 do ids[i] = nil end
  return ids, ids[step]
end

local function by_index(below, step, states, due) -- Of scheduled jobs, only those with run_at up to `due`.
  local ids = {}
  if not live_ids(states, below, ids, due) then return nil end
  for letter, key in pairs({f = FAILED, x = CANCELLED}) do
    if string.find(states, letter, 1, true) then
      local found = call('ZREVRANGEBYLEX', key, '(' .. below, '-', 'LIMIT', 0, step + 1)
      for _, id in ipairs(found) do ids[#ids + 1] = id end
    end
  end
  table.sort(ids, function(a, b) return a > b end)
  return cut(ids, step)
end

local function by_walking(below, step)
  local ids, last = {}, '[' .. sub(below, 1, 13)
  while #ids <= step do -- Finds one more than needed, to see whether there are more.
    local buckets = call('ZREVRANGEBYLEX', P .. ':buckets', last, '-', 'LIMIT', 0, 1)
    if not buckets[1] then return ids, '' end
    local found = call('HKEYS', STATES .. buckets[1])
    table.sort(found) -- Ascending: a custom comparison function would take several times as long.
    for i = #found, 1, -1 do
      if found[i] < below then ids[#ids + 1] = found[i] end
    end
    last = '(' .. buckets[1]
  end
  return cut(ids, step)
end
