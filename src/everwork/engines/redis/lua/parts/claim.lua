-- Purpose: promote due jobs, then lease the first jobs of each lane; several lanes take turns.
-- Inputs: records, traits, running, effects, queues, endings. activate(at) reads ARGV from `at` on: the number of
--   claims; then per claim type, group, the number of the demand that parks (0 for none), the token of its worker ('':
--   what it has parked is withdrawn), the number of tenants, each tenant ('' is the default one), the number of
--   demands, and per demand worker, limit, lease_ms.
-- Returns: now, next due or '', number of the last wake-up (see answered), then per claim with jobs: its number, ids,
--   heads, infos, payloads. The jobs are assigned to its demands in order; an info is attempt, attempts, max,
--   priority, lane.
local PROMOTE_MAX = @PROMOTE_MAX@

-- A tenant's lanes are found by scanning all lanes. If several claims of a call are restricted to some tenants, the
-- lanes of their queue are read only once.
local bound, indexed = {}, {} -- By queue: the number of such claims; the lanes, once read.

local function promote(queue)
  local future = future_key(queue)
  local ids = call('ZRANGEBYSCORE', future, '-inf', NOW, 'LIMIT', 0, PROMOTE_MAX)
  if #ids == 0 then return end
  call('ZREMRANGEBYRANK', future, 0, #ids - 1)
  indexed[queue] = nil
  local lanes = {}
  for i, record in ipairs(fetch(STATES, ids)) do
    local r = record and parse(sub(record, 31))
    if r then
      local members = lanes[r.lane]
      if not members then members = {}; lanes[r.lane] = members end
      members[#members + 1] = ready_score(r.priority, sub(record, 1, 15))
      members[#members + 1] = ids[i]
    else
      call('SADD', P .. ':damaged', ids[i])
    end
  end
  for lane, members in pairs(lanes) do
    call_many('ZADD', ready_key(queue, lane), members)
    open_lane(queue, lane)
  end
end

local function pop(queue, lane, n, ids) -- Appends up to n ids; returns how many, and whether the lane is now empty.
  local ready = ready_key(queue, lane)
  local got = call('ZRANGE', ready, 0, n) -- Reads n + 1, to see whether there are more.
  local popped = #got
  local is_empty = popped <= n
  if is_empty then
    call('DEL', ready)
    opened[queue .. '\n' .. lane] = nil
  else
    popped = n
    call('ZREMRANGEBYRANK', ready, 0, n - 1)
  end
  local at = #ids
  for i = 1, popped do ids[at + i] = got[i] end
  return popped, is_empty
end

local function index_lanes(queue)
  local got, index = call('ZRANGE', P .. ':lanes:' .. queue, 0, -1, 'WITHSCORES'), {by_name = {}, by_tenant = {}}
  for i = 1, #got, 2 do
    local lane, tenant = {name = got[i], served = tonumber(got[i + 1])}, tenant_of(got[i])
    index.by_name[got[i]] = lane
    index.by_tenant[tenant] = index.by_tenant[tenant] or {}
    table.insert(index.by_tenant[tenant], lane)
  end
  indexed[queue] = index
  return index
end

local function indexed_lanes(queue, tenants, limit)
  local lanes, names, index = {}, {}, indexed[queue] or index_lanes(queue)
  for tenant in pairs(tenants) do
    for _, lane in ipairs(index.by_tenant[tenant] or {}) do
      if lane.served then lanes[#lanes + 1] = lane end
    end
  end
  table.sort(lanes, function(a, b) return a.served < b.served or a.served == b.served and a.name < b.name end)
  for i = 1, math.min(#lanes, limit) do names[i] = lanes[i].name end
  return names
end

local function lanes_of(queue, tenants, limit) -- Lanes with ready work, least recently served first.
  local lanes = lanes_key(queue)
  if not tenants then return call('ZRANGE', lanes, 0, limit - 1) end
  if bound[queue] > 1 then return indexed_lanes(queue, tenants, limit) end
  local names, from = {}, 0
  repeat
    local got = call('ZRANGE', lanes, from, from + 499)
    for _, lane in ipairs(got) do
      if tenants[tenant_of(lane)] and #names < limit then names[#names + 1] = lane end
    end
    from = from + 500
  until #got < 500 or #names == limit
  return names
end

-- How many more jobs may start in each lane with a limit key.
local function read_capacities(queue, names, limit, capacities)
  local unknown = {}
  for _, lane in ipairs(names) do
    if not capacities[lane] and has_limit_key(lane) then unknown[#unknown + 1] = lane end
  end
  local numbers = numbers_of(queue, unknown)
  for _, lane in ipairs(unknown) do capacities[lane] = math.max(0, limit - numbers[lane]) end
end

-- Each lane gets an equal share; lanes that got one extra job come after those that did not.
local function round(queue, names, left, ids, capacities)
  local lanes, served = lanes_key(queue), P .. ':served:' .. queue
  local share, extra, n = math.floor(left / #names), left % #names, #names
  local turn = call('INCRBY', P .. ':turn:' .. queue, 2 * n) - 2 * n
  local back, gone, mark, full, taken = {}, {}, {}, {}, 0
  for i, lane in ipairs(names) do
    local has_more = i <= extra
    local mine = turn + i + (has_more and n or 0)
    local target, capacity = share + (has_more and 1 or 0), capacities[lane]
    local popped, is_empty = 0, false
    if capacity ~= 0 then
      popped, is_empty = pop(queue, lane, capacity and math.min(capacity, target) or target, ids)
    end
    taken = taken + popped
    if capacity then capacities[lane] = capacity - popped end
    local is_full = capacity == popped and not is_empty
    local known = indexed[queue] and indexed[queue].by_name[lane]
    if known then known.served = not is_empty and not is_full and mine or nil end
    if is_full then
      gone[#gone + 1] = lane
      full[#full + 1] = mine
      full[#full + 1] = lane
    elseif is_empty then
      gone[#gone + 1] = lane
      mark[#mark + 1] = lane
      mark[#mark + 1] = mine
    else
      back[#back + 1] = mine
      back[#back + 1] = lane
    end
  end
  call_many('ZADD', lanes, back)
  call_many('ZADD', full_key(queue), full)
  call_many('ZREM', lanes, gone)
  call_many('HSET', served, mark)
  return taken
end

local function claim(queue, limit, tenants, limit_per_key)
  local ids, left, capacities = {}, limit, {}
  while left > 0 do
    local names = lanes_of(queue, tenants, left)
    if #names == 0 then break end
    if limit_per_key then read_capacities(queue, names, limit_per_key, capacities) end
    left = left - round(queue, names, left, ids, capacities)
  end
  return ids
end

local lease
local function lease_others(ids, records, demands) -- Leases the jobs, except those that are damaged.
  for i = #ids, 1, -1 do
    if not (records[i] and parse(sub(records[i], 31))) then call('SADD', P .. ':damaged', table.remove(ids, i)) end
  end
  return lease(ids, demands)
end

function lease(ids, demands) -- Writes claimed jobs as leased; returns heads, infos and payloads.
  local runs = runs_of(ids)
  local records, payloads = fetch(STATES, ids, runs), fetch(PAYLOADS, ids, runs)
  local states, leases, heads, infos, followings, next_of = {}, {}, {}, {}, {}, nil
  local at, last, worker, till = -2, 0, nil, nil -- These describe the demand being served; `at` is its index.
  for i = 1, #ids do
    while i > last do
      at = at + 3
      last, worker, till = last + demands[at + 1], demands[at], fmt('%.0f', now + demands[at + 2])
      next_of = {}
    end
    local record = records[i]
    if not record then return lease_others(ids, records, demands) end
    local tail, head = sub(record, 31), sub(record, 1, 30)
    local following = next_of[tail]
    if not following then
      local r = parse(tail)
      if not r then return lease_others(ids, records, demands) end
      local attempt, attempts = r.attempt + 1, r.attempts + 1
      following = {r = r, n = 0, tail = tail_of(r, 'r', attempt, attempts, r.max, '', NOW, '', worker),
        info = table.concat({attempt, attempts, r.max, r.priority, r.lane}, '\n')}
      next_of[tail] = following
      followings[#followings + 1] = following
    end
    following.n = following.n + 1
    states[i], heads[i], infos[i] = head .. following.tail, head, following.info
    leases[2 * i - 1], leases[2 * i] = till, ids[i]
  end
  store(STATES, ids, states, runs)
  call_many('ZADD', LEASES, leases)
  for _, following in ipairs(followings) do move_count(following.r, 'r', following.n) end
  return heads, infos, payloads
end

local function read_claim(at)
  local type, group, parker, token, n = unpack(ARGV, at, at + 4)
  local queue = group == '' and type or type .. '\31' .. group
  local request = {type = type, group = group, queue = queue, demands = {}, limit = 0,
    parker = tonumber(parker), token = token}
  for i = at + 5, at + 4 + n do
    request.tenants = request.tenants or {}
    request.tenants[ARGV[i]] = true
  end
  at = at + 5 + n
  local last = at + 3 * ARGV[at]
  for i = at + 1, last do request.demands[i - at] = ARGV[i] end
  for i = at + 2, last, 3 do request.limit = request.limit + ARGV[i] end
  return request, last + 1
end

local function read_claims(at)
  local claims, n = {}, tonumber(ARGV[at])
  at = at + 1
  for i = 1, n do
    claims[i], at = read_claim(at)
    local queue = claims[i].queue
    if claims[i].tenants then bound[queue] = (bound[queue] or 0) + 1 end
  end
  return claims
end

-- Returns the traits of the type, or nothing if the group does not exist; stores the time of the demand.
local function demanded_type(request)
  local t, asked = trait_of(request.type), 'asked\n' .. request.group
  if not t.known then
    call('HSET', t.key, 'known', 1)
    call('SADD', P .. ':types', request.type)
    t.known = '1'
  end
  if request.group ~= '' and not string.find('\31' .. t.groups .. '\31', '\31' .. request.group .. '\31', 1, true) then
    return nil
  end
  local before = request.group == '' and t.asked or request.group ~= '' and call('HGET', t.key, asked)
  local since = before and now - before
  if not since or since < 0 or since >= @ASKED_EVERY_MS@ then
    call('HSET', t.key, asked, NOW) -- A second claim of this call may write it again.
  end
  return t
end

-- The current rate window, or a new one if it has ended: its start, and how many jobs have started in it.
local function window_of(t, group)
  local since, used = string.match(call('HGET', t.key, 'window\n' .. group) or '', '^(%d+) (%d+)$')
  if not since or math.abs(now - since) >= t.rate_ms then return now, 0 end
  return tonumber(since), tonumber(used)
end

-- Returns how many jobs may start now, and when more may start if they only have to wait.
local function capacity_for(request, t)
  local capacity, till = request.limit, nil
  if t.paused then return 0 end
  if t.breaker then
    if t.breaker > now then return 0, t.breaker end
    capacity = is_probe_live(t) and 0 or 1
  end
  if t.max_running and capacity > 0 then capacity = math.min(capacity, t.max_running - running_of(request.queue)) end
  if t.rate_jobs then
    local since, used = window_of(t, request.group)
    if capacity >= t.rate_jobs - used then capacity, till = t.rate_jobs - used, since + t.rate_ms end
  end
  return math.max(capacity, 0), till
end

local function enter_window(t, group, started)
  local since, used = window_of(t, group)
  call('HSET', t.key, 'window\n' .. group, fmt('%.0f %.0f', since, used + started))
end

local function start(request, t, capacity, out) -- Leases the jobs that may start; returns how many.
  promote(request.queue)
  if t.max_per_key then apply_running() end
  local ids = claim(request.queue, capacity, request.tenants, t.max_per_key)
  if #ids == 0 then return 0 end
  local heads, infos, payloads = lease(ids, request.demands)
  if #ids == 0 then return 0 end -- All of them were damaged.
  local at = #out
  out[at + 1], out[at + 2], out[at + 3], out[at + 4], out[at + 5] = request.number, ids, heads, infos, payloads
  if t.rate_jobs then enter_window(t, request.group, #ids) end
  if t.breaker then
    t.probe, t.probe_attempt = ids[1], string.match(infos[1], '^%d+')
    call('HSET', t.key, 'probe', t.probe .. ' ' .. t.probe_attempt)
  end
  return #ids
end

-- Parks the demand of a worker as a field of its type: when it expires, the token of the worker's channel, lease_ms,
-- and the worker's name. If the demand was met, or may not be parked, the worker's parked demand is withdrawn instead.
local function park(request, t, is_met)
  local at, token = 3 * request.parker, request.token
  local worker, lease_ms = request.demands[at - 2], request.demands[at]
  local is_plain = t.groups == '' and not (t.paused or t.breaker or t.breaker_failures or t.max_running
    or t.max_per_key or t.rate_jobs)
  if is_plain and token ~= '' and not is_met then
    call('HSET', t.key, 'parked', fmt('%.0f %s %s %s', now + @PARK_MS@, token, lease_ms, worker))
  elseif t.parked and string.match(t.parked, '^%d+ %x+ %d+ (.*)$') == worker then
    call('HDEL', t.key, 'parked')
  end
end

local function has_work(queue) return call('EXISTS', lanes_key(queue), full_key(queue), future_key(queue)) > 0 end

local function activate(at)
  local out, next_due = {NOW, '', 0}, nil
  local function note_due(instant)
    if instant and not (next_due and next_due < instant) then next_due = instant end
  end
  local _, more_expired = expire()
  if more_expired then next_due = now end
  for i, request in ipairs(read_claims(at)) do
    local t, leased, capacity, later = demanded_type(request), 0, 0, nil
    if t and not more_expired then capacity, later = capacity_for(request, t) end
    if capacity > 0 then
      request.number = i
      leased = start(request, t, capacity, out)
      note_due(tonumber(call('ZRANGE', future_key(request.queue), 0, 0, 'WITHSCORES')[2]))
    end
    if later and has_work(request.queue) then note_due(later) end
    if leased < request.limit then waiting[request.queue] = true end
    if t and request.parker > 0 then park(request, t, leased == request.limit) end
  end
  if next_due then out[2] = fmt('%.0f', next_due) end
  return out
end

local function answered(out) -- Call it after finish(): this script's own wake-ups must not wake its caller.
  out[3] = call('HGET', P .. ':bell', 'work') or '0'
  return out
end
