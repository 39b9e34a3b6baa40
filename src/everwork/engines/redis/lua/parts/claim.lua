-- Purpose: promote what is due, then lease the first jobs of each lane: straight down one lane, or by turns.
-- Inputs: records, traits, running, effects, places, endings. activate(at) reads ARGV from `at` on: claims, then per claim
--   type, group, tenants, and each of these tenants ('' is the default one), demands, and per demand worker, limit, lease_ms.
-- Returns {now, next due or '', number of the last wake-up (see answered), then per claim with jobs: its number, ids, heads, infos, payloads};
--   the jobs are for its demands, in their order; an info is attempt, attempts, max, priority, lane.
local PROMOTE_MAX = @PROMOTE_MAX@

-- To find a tenant's lanes is to walk over all of them. When several claims of a call want the jobs of some tenants
-- only, the lanes of their queue are read once.
local bound, indexed = {}, {} -- By queue: how many such claims there are; what was read.

local function promote(queue)
  local future = future_key(queue)
  local ids = call('ZRANGEBYSCORE', future, '-inf', NOW, 'LIMIT', 0, PROMOTE_MAX)
  if #ids == 0 then return end
  call('ZREMRANGEBYRANK', future, 0, #ids - 1)
  indexed[queue] = nil
  local lanes = {}
  for i, record in ipairs(fetch(S, ids)) do
    local r = parse(sub(record, 31))
    local z = lanes[r.lane]
    if not z then z = {}; lanes[r.lane] = z end
    z[#z + 1] = ready_score(r.priority, sub(record, 1, 15))
    z[#z + 1] = ids[i]
  end
  for lane, z in pairs(lanes) do
    many('ZADD', ready_key(queue, lane), z)
    open_lane(queue, lane)
  end
end

local function pop(queue, lane, n, ids) -- Appends up to n ids; how many, and whether the lane is empty now.
  local ready = ready_key(queue, lane)
  local got = call('ZRANGE', ready, 0, n) -- One more than wanted, to see whether any stays.
  local k = #got
  local is_empty = k <= n
  if is_empty then
    call('DEL', ready)
    opened[queue .. '\n' .. lane] = nil
  else
    k = n
    call('ZREMRANGEBYRANK', ready, 0, n - 1)
  end
  local at = #ids
  for i = 1, k do ids[at + i] = got[i] end
  return k, is_empty
end

local function index_lanes(queue)
  local got, index = call('ZRANGE', P .. ':lanes:' .. queue, 0, -1, 'WITHSCORES'), {of = {}, whose = {}}
  for i = 1, #got, 2 do
    local lane, tenant = {name = got[i], served = tonumber(got[i + 1])}, tenant_of(got[i])
    index.of[got[i]] = lane
    index.whose[tenant] = index.whose[tenant] or {}
    table.insert(index.whose[tenant], lane)
  end
  indexed[queue] = index
  return index
end

local function indexed_lanes(queue, tenants, wanted)
  local lanes, names, index = {}, {}, indexed[queue] or index_lanes(queue)
  for tenant in pairs(tenants) do
    for _, lane in ipairs(index.whose[tenant] or {}) do if lane.served then lanes[#lanes + 1] = lane end end
  end
  table.sort(lanes, function(a, b) return a.served < b.served or a.served == b.served and a.name < b.name end)
  for i = 1, math.min(#lanes, wanted) do names[i] = lanes[i].name end
  return names
end

local function lanes_of(queue, tenants, wanted) -- Lanes with ready work, least recently served first.
  local lanes = lanes_key(queue)
  if not tenants then return call('ZRANGE', lanes, 0, wanted - 1) end
  if bound[queue] > 1 then return indexed_lanes(queue, tenants, wanted) end
  local names, from = {}, 0
  repeat
    local got = call('ZRANGE', lanes, from, from + 499)
    for _, lane in ipairs(got) do
      if tenants[tenant_of(lane)] and #names < wanted then names[#names + 1] = lane end
    end
    from = from + 500
  until #got < 500 or #names == wanted
  return names
end

local function find_rooms(queue, names, limit, rooms) -- How many more may start of each lane with a limit key.
  local asked = {}
  for _, lane in ipairs(names) do if not rooms[lane] and has_limit_key(lane) then asked[#asked + 1] = lane end end
  local numbers = numbers_of(queue, asked)
  for _, lane in ipairs(asked) do rooms[lane] = math.max(0, limit - numbers[lane]) end
end

local function round(queue, names, left, ids, rooms) -- Every lane gets an equal share; who got one more stands behind who did not.
  local lanes, served = lanes_key(queue), P .. ':served:' .. queue
  local share, extra, n = math.floor(left / #names), left % #names, #names
  local turn = call('INCRBY', P .. ':turn:' .. queue, 2 * n) - 2 * n
  local back, gone, mark, full, taken = {}, {}, {}, {}, 0
  for i, lane in ipairs(names) do
    local has_more = i <= extra
    local mine = turn + i + (has_more and n or 0)
    local wanted, room = share + (has_more and 1 or 0), rooms[lane]
    local k, is_empty = 0, false
    if room ~= 0 then k, is_empty = pop(queue, lane, room and math.min(room, wanted) or wanted, ids) end
    taken = taken + k
    if room then rooms[lane] = room - k end
    local is_full = room == k and not is_empty
    local known = indexed[queue] and indexed[queue].of[lane]
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
  many('ZADD', lanes, back)
  many('ZADD', full_key(queue), full)
  many('ZREM', lanes, gone)
  many('HSET', served, mark)
  return taken
end

local function claim(queue, limit, tenants, limit_per_key)
  local ids, left, rooms = {}, limit, {}
  while left > 0 do
    local names = lanes_of(queue, tenants, left)
    if #names == 0 then break end
    if limit_per_key then find_rooms(queue, names, limit_per_key, rooms) end
    left = left - round(queue, names, left, ids, rooms)
  end
  return ids
end

local function lease(ids, demands) -- Writes what was claimed as leased; heads, infos and payloads.
  local runs = runs_of(ids)
  local records, payloads = fetch(S, ids, runs), fetch(J, ids, runs)
  local states, leases, heads, infos, followings, next_of = {}, {}, {}, {}, {}, nil
  local at, last, worker, till = -2, 0, nil, nil -- Of the demand whose jobs are written, in `demands`; its last job.
  for i = 1, #ids do
    while i > last do
      at = at + 3
      last, worker, till, next_of = last + demands[at + 1], demands[at], fmt('%.0f', now + demands[at + 2]), {}
    end
    local record = records[i]
    local tail, head = sub(record, 31), sub(record, 1, 30)
    local following = next_of[tail]
    if not following then
      local r = parse(tail)
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
  store(S, ids, states, runs)
  many('ZADD', LEASES, leases)
  for _, following in ipairs(followings) do move(following.r, 'r', following.n) end
  return heads, infos, payloads
end

local function read_claim(at)
  local type, group, n = unpack(ARGV, at, at + 2)
  local wanted = {type = type, group = group, queue = group == '' and type or type .. '\31' .. group, demands = {}, limit = 0}
  for i = at + 3, at + 2 + n do
    wanted.tenants = wanted.tenants or {}
    wanted.tenants[ARGV[i]] = true
  end
  at = at + 3 + n
  local last = at + 3 * ARGV[at]
  for i = at + 1, last do wanted.demands[i - at] = ARGV[i] end
  for i = at + 2, last, 3 do wanted.limit = wanted.limit + ARGV[i] end
  return wanted, last + 1
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

local function asked_for(wanted) -- What is known of the type, unless there is no such group; remembers that it was asked for.
  local t, asked = trait_of(wanted.type), 'asked\n' .. wanted.group
  if not t.known then
    call('HSET', t.key, 'known', 1)
    call('SADD', P .. ':types', wanted.type)
    t.known = '1'
  end
  if wanted.group ~= '' and not string.find('\31' .. t.groups .. '\31', '\31' .. wanted.group .. '\31', 1, true) then return nil end
  local before = wanted.group == '' and t.asked or wanted.group ~= '' and call('HGET', t.key, asked)
  local since = before and now - before
  if not since or since < 0 or since >= @ASKED_EVERY_MS@ then call('HSET', t.key, asked, NOW) end -- A second claim of this call may say it again.
  return t
end

local function window_of(t, group) -- The rate's, if it has not ended.
  local since, used = string.match(call('HGET', t.key, 'window\n' .. group) or '', '^(%d+) (%d+)$')
  if not since or math.abs(now - since) >= t.rate_ms then return now, 0 end
  return tonumber(since), tonumber(used)
end

local function room_for(wanted, t) -- How many may start now, and from when on more may if only time holds them back.
  local room, till = wanted.limit, nil
  if t.paused then return 0 end
  if t.breaker then
    if t.breaker > now then return 0, t.breaker end
    room = probe_lives(t) and 0 or 1
  end
  if t.max_running and room > 0 then room = math.min(room, t.max_running - running_of(wanted.queue)) end
  if t.rate_jobs then
    local since, used = window_of(t, wanted.group)
    if room >= t.rate_jobs - used then room, till = t.rate_jobs - used, since + t.rate_ms end
  end
  return math.max(room, 0), till
end

local function enter_window(t, group, started)
  local since, used = window_of(t, group)
  call('HSET', t.key, 'window\n' .. group, fmt('%.0f %.0f', since, used + started))
end

local function start(wanted, t, room, out) -- Leases what may start: how many.
  promote(wanted.queue)
  if t.max_per_key then take_in_running() end
  local ids = claim(wanted.queue, room, wanted.tenants, t.max_per_key)
  if #ids == 0 then return 0 end
  local heads, infos, payloads = lease(ids, wanted.demands)
  local at = #out
  out[at + 1], out[at + 2], out[at + 3], out[at + 4], out[at + 5] = wanted.number, ids, heads, infos, payloads
  if t.rate_jobs then enter_window(t, wanted.group, #ids) end
  if t.breaker then
    t.probe, t.probe_attempt = ids[1], string.match(infos[1], '^%d+')
    call('HSET', t.key, 'probe', t.probe .. ' ' .. t.probe_attempt)
  end
  return #ids
end

local function has_work(queue) return call('EXISTS', lanes_key(queue), full_key(queue), future_key(queue)) > 0 end

local function activate(at)
  local out, next_due = {NOW, '', 0}, nil
  local function look_again(instant) if instant and not (next_due and next_due < instant) then next_due = instant end end
  local _, more_expired = expire()
  if more_expired then next_due = now end
  for i, wanted in ipairs(read_claims(at)) do
    local t, leased, room, later = asked_for(wanted), 0, 0, nil
    if t and not more_expired then room, later = room_for(wanted, t) end
    if room > 0 then
      wanted.number = i
      leased = start(wanted, t, room, out)
      look_again(tonumber(call('ZRANGE', future_key(wanted.queue), 0, 0, 'WITHSCORES')[2]))
    end
    if later and has_work(wanted.queue) then look_again(later) end
    if leased < wanted.limit then waiting[wanted.queue] = true end
  end
  if next_due then out[2] = fmt('%.0f', next_due) end
  return out
end

local function answered(out) -- After finish(): what this script has made itself is no news to whoever asked.
  out[3] = call('HGET', P .. ':bell', 'work') or '0'
  return out
end
