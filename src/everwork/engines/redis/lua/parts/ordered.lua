-- Purpose: the positions of jobs in a list that is ordered by time: run_at, or the time of the failure.
-- Inputs: records, candidates. A position is {time, id}.

-- The rank of the first member after a score and id; `sign` 1: ascending, -1: descending.
local function rank_behind(key, score, id, sign)
  local is_up, exact = sign == 1, fmt('%.0f', score)
  local low = is_up and call('ZCOUNT', key, '-inf', '(' .. exact) or call('ZCOUNT', key, '(' .. exact, '+inf')
  local high = low + call('ZCOUNT', key, exact, exact)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local found = call(is_up and 'ZRANGE' or 'ZREVRANGE', key, middle, middle)[1]
    if is_up and found <= id or not is_up and found >= id then low = middle + 1 else high = middle end
  end
  return low
end

-- Adds at most `step` positions of a set, up to the score `last`; a score is `base` plus a time.
local function add_places(places, key, base, from, step, last)
  local rank = rank_behind(key, base + from[1], from[2], 1)
  local found = call('ZRANGE', key, rank, rank + step - 1, 'WITHSCORES')
  for i = 1, #found, 2 do
    local score = tonumber(found[i + 1])
    if score > last then return end
    places[#places + 1] = {score - base, found[i]}
  end
end

local function is_earlier(a, b) return a[1] < b[1] or a[1] == b[1] and a[2] < b[2] end

local function cut_places(places, step)
  table.sort(places, is_earlier)
  for i = #places, step + 1, -1 do places[i] = nil end
end

local PRIORITY_STEP = 4398046511104 -- As in queues.
local function add_ready(places, key, from, step)
  local head = call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
  local ranges = 0
  while head do -- The next priority.
    local base = math.floor(tonumber(head) / PRIORITY_STEP) * PRIORITY_STEP
    add_places(places, key, base, from, step, base + PRIORITY_STEP - 1)
    head = call('ZRANGEBYSCORE', key, fmt('%.0f', base + PRIORITY_STEP), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
    ranges = ranges + 1
  end
  return ranges
end

-- The pending jobs of a type ('' for all) up to a given time, in the order in which they become due; nil if they are
-- in too many lanes.
local function due_places(type, from, step, till)
  local futures, ranges = {}, 0
  local keys, too_many = pending_keys(futures, type)
  local places = {}
  for _, key in ipairs(keys) do
    if futures[key] then add_places(places, key, 0, from, step, till)
    else ranges = ranges + add_ready(places, key, from, step) end
    if too_many or ranges > FEW then return nil end
    if #places > 4 * step then cut_places(places, step) end
  end
  cut_places(places, step)
  return places
end

local function failed_places(from, step) -- Failed jobs, latest failure first.
  local rank, places = rank_behind(FAILED_AT, from[1], from[2], -1), {}
  local found = call('ZREVRANGE', FAILED_AT, rank, rank + step - 1, 'WITHSCORES')
  for i = 1, #found, 2 do places[#places + 1] = {tonumber(found[i + 1]), found[i]} end
  return places
end
