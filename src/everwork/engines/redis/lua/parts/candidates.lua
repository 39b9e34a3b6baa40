-- Purpose: where the jobs of some states can be found by key, newest first. Inputs: records.
local FEW = @LIST_SCAN_MAX@

local function add_places(queue, keys, futures)
  keys[#keys + 1] = P .. ':future:' .. queue
  futures[keys[#keys]] = true
  for _, lanes in ipairs({P .. ':lanes:', P .. ':full:'}) do
    for _, lane in ipairs(call('ZRANGE', lanes .. queue, 0, -1)) do keys[#keys + 1] = P .. ':ready:' .. queue .. '\n' .. lane end
  end
end

local function pending_places(futures) -- Every set that holds pending jobs; those of scheduled ones are noted in `futures`.
  local keys = {}
  for _, type in ipairs(call('SMEMBERS', P .. ':types')) do
    local groups = call('HGET', P .. ':t:' .. type, 'groups') or ''
    add_places(type, keys, futures)
    for group in string.gmatch(groups, '[^\31]+') do add_places(type .. '\31' .. group, keys, futures) end
    if #keys > FEW then return keys, true end
  end
  for _, queue in ipairs(call('SMEMBERS', P .. ':dropped')) do add_places(queue, keys, futures) end
  return keys, #keys > FEW
end

local function live_ids(states, below, ids, due) -- Adds the ids of live jobs; false if they are too many to sort.
  local keys, futures, too_many = {}, {}, false
  if string.find(states, 'p', 1, true) then keys, too_many = pending_places(futures) end
  if string.find(states, 'r', 1, true) then keys[#keys + 1] = LEASES end
  local total = 0
  for _, key in ipairs(keys) do
    if too_many then return false end
    total = total + (futures[key] and call('ZCOUNT', key, '-inf', due) or call('ZCARD', key))
    if total > FEW then return false end
  end
  for _, key in ipairs(keys) do
    for _, id in ipairs(futures[key] and call('ZRANGEBYSCORE', key, '-inf', due) or call('ZRANGE', key, 0, -1)) do
      if id < below then ids[#ids + 1] = id end -- The guard among the leases sorts behind every id.
    end
  end
  return true
end

local function cut(ids, step) -- Those that stand first, and where to go on.
  if #ids <= step then return ids, '' end
  for i = #ids, step + 1, -1 do ids[i] = nil end
  return ids, ids[step]
end

local function by_index(below, step, states, due) -- Of scheduled jobs those that run until then.
  local ids = {}
  if not live_ids(states, below, ids, due) then return nil end
  for letter, key in pairs({f = FAILED, x = CANCELLED}) do
    if string.find(states, letter, 1, true) then
      for _, id in ipairs(call('ZREVRANGEBYLEX', key, '(' .. below, '-', 'LIMIT', 0, step + 1)) do ids[#ids + 1] = id end
    end
  end
  table.sort(ids, function(a, b) return a > b end)
  return cut(ids, step)
end

local function by_walking(below, step)
  local ids, last = {}, '[' .. sub(below, 1, 13)
  while #ids <= step do -- One more than asked for: only then there are others.
    local buckets = call('ZREVRANGEBYLEX', P .. ':buckets', last, '-', 'LIMIT', 0, 1)
    if not buckets[1] then return ids, '' end
    local found = call('HKEYS', S .. buckets[1])
    table.sort(found) -- Upwards, because a comparison of one's own takes several times as long.
    for i = #found, 1, -1 do
      if found[i] < below then ids[#ids + 1] = found[i] end
    end
    last = '(' .. buckets[1]
  end
  return cut(ids, step)
end
