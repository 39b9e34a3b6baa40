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

local function queues_of_types(types, type) -- The queues of these types, and the dropped ones of a type ('' for all).
  local queues = {}
  for _, one in ipairs(types) do
    queues[#queues + 1] = one
    for group in string.gmatch(call('HGET', P .. ':t:' .. one, 'groups') or '', '[^\31]+') do
      queues[#queues + 1] = one .. '\31' .. group
    end
  end
  for _, queue in ipairs(call('SMEMBERS', P .. ':dropped')) do
    if type == '' or type_of(queue) == type then queues[#queues + 1] = queue end
  end
  return queues
end

local function counted_queues() -- The queues that have pending jobs, by the counts of jobs.
  local queues, seen = {}, {}
  for _, field in ipairs(call('HKEYS', P .. ':n')) do
    local queue = string.match(field, '^p\n([^\n]*)')
    if queue and not seen[queue] then
      seen[queue] = true
      queues[#queues + 1] = queue
    end
  end
  return queues
end

-- The queues that may have pending jobs of a type ('' for all). There may be many types without jobs, or many counts,
-- because these are by tenant; to look at a type takes about as long as to read eight counts.
local function pending_queues(type)
  if type ~= '' then return queues_of_types({type}, type) end
  if 8 * call('SCARD', P .. ':types') > call('HLEN', P .. ':n') then return counted_queues() end
  return queues_of_types(call('SMEMBERS', P .. ':types'), '')
end

-- The keys of all sets of pending jobs of a type, and whether there are too many; those of scheduled ones are added to
-- `futures`.
local function pending_keys(futures, type)
  local keys = {}
  for _, queue in ipairs(pending_queues(type)) do
    add_keys(queue, keys, futures)
    if #keys > FEW then return keys, true end
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
