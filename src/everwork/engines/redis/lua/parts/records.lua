-- Purpose: what every script begins with: the clock, the places of things, and a job's state as one short text.
-- Inputs: KEYS[1] the namespace in braces, which is never a key itself; ARGV[1] now in ms, '' for the server's own clock.
-- Because KEYS[1] does not exist, a cluster answers ASK for every call while it moves the slot: nothing is half moved.
--
-- A job's id is its key in 16 digits, so that ids sort as text. Jobs stand in buckets of 1,000 ids, one hash per bucket
-- and part: s state, j payload (written once, never parsed here but for its first line), e last error (code \0 text), o result, k dedupe field, p own policy,
-- a how often it came back by itself.
-- State: run_at (15 digits), created_at (15 digits), then the tail, which most jobs of a batch share:
--   state, attempt, attempts, max, created max, priority, queue, lane, expires, copy of, kind, activated, finished, worker
-- state: p pending, r processing, c completed, f failed, x cancelled. queue: type, or type \31 group. lane: '' or tenant \31 limit key.
local P, call, fmt, sub = KEYS[1], redis.call, string.format, string.sub
local now = tonumber(ARGV[1])
if not now then
  local clock = call('TIME')
  now = clock[1] * 1000 + math.floor(clock[2] / 1000)
end
local NOW = fmt('%.0f', now)
local S, J, E, O, K, OWN, AGAIN = P .. ':s:', P .. ':j:', P .. ':e:', P .. ':o:', P .. ':k:', P .. ':p:', P .. ':a:'
local LEASES, EXPIRY = P .. ':leases', P .. ':expiry'
local FAILED, CANCELLED = P .. ':failed', P .. ':cancelled'
local FILLER = string.rep('~', 65) -- A small set or hash is a list that every write walks over; one long member makes it a tree or table for good.
local CHUNK = 2000 -- Lua cannot unpack more than about 7,900 values; even, for pairs.

-- A full server refuses a script whose first write may take memory. After this one, which takes none, it lets the others
-- pass: what has been accepted must be kept alive, worked off and forgotten there, too. Scripts that create do not use it.
local function write_though_full() call('ZREM', LEASES, '') end

local function many(command, key, args) -- One call, or several where unpack would overflow.
  local n = #args
  if n == 0 then return end
  if n <= CHUNK then return call(command, key, unpack(args)) end
  for i = 1, n, CHUNK do call(command, key, unpack(args, i, math.min(i + CHUNK - 1, n))) end
end

local function runs_of(ids) -- Neighbours in one bucket: bucket, first, last, flat. For several calls on the same ids.
  local runs, n, i = {}, #ids, 1
  while i <= n do
    local bucket, j = sub(ids[i], 1, 13), i
    while j < n and j - i < CHUNK and sub(ids[j + 1], 1, 13) == bucket do j = j + 1 end
    local at = #runs
    runs[at + 1], runs[at + 2], runs[at + 3] = bucket, i, j
    i = j + 1
  end
  return runs
end

local function fetch(part, ids, runs) -- One part of jobs, in the order of ids; false where there is none.
  runs = runs or runs_of(ids)
  if #runs == 3 then return call('HMGET', part .. runs[1], unpack(ids)) end
  local out = {}
  for at = 1, #runs, 3 do
    local i, j = runs[at + 1], runs[at + 2]
    local got = call('HMGET', part .. runs[at], unpack(ids, i, j))
    for k = 1, #got do out[i + k - 1] = got[k] end
  end
  return out
end

local function store(part, ids, values, runs)
  runs = runs or runs_of(ids)
  for at = 1, #runs, 3 do
    local args, n = {}, 0
    for i = runs[at + 1], runs[at + 2] do
      args[n + 1], args[n + 2] = ids[i], values[i]
      n = n + 2
    end
    many('HSET', part .. runs[at], args)
  end
end

local function put(part, id, value) call('HSET', part .. sub(id, 1, 13), id, value) end
local function drop(part, id) call('HDEL', part .. sub(id, 1, 13), id) end

local function state_of(id)
  local record = call('HGET', S .. sub(id, 1, 13), id)
  if record then return record, sub(record, 31) end
end

local PATTERN = '^(%a)\n(%d+)\n(%d+)\n(%d+)\n(%d+)\n(%-?%d+)\n([^\n]*)\n([^\n]*)\n(%d*)\n(%d*)\n(%a*)\n(%d*)\n(%d*)\n(.*)$'
local parsed = {}
local function parse(tail) -- Never change what it answers: it is shared.
  local r = parsed[tail]
  if r then return r end
  local s, a, c, m, cm, p, q, l, x, o, k, at, f, w = string.match(tail, PATTERN)
  r = {state = s, attempt = a, attempts = c, max = m, created_max = cm, priority = p, queue = q, lane = l, expires = x,
    copy = o, kind = k, activated = at, finished = f, worker = w}
  parsed[tail] = r
  return r
end

local function tail_of(r, state, attempt, attempts, max, kind, activated, finished, worker)
  return table.concat({state, attempt, attempts, max, r.created_max, r.priority, r.queue, r.lane, r.expires, r.copy,
    kind, activated, finished, worker}, '\n')
end

local function tenant_of(lane) return lane == '' and '' or string.match(lane, '^(.-)\31') end
local function type_of(queue) return string.match(queue, '^([^\31]*)') end

local function begin_store() -- A new store, or one that somebody has flushed under us.
  call('SETNX', P .. ':version', '@SCHEMA_VERSION@')
  call('ZADD', LEASES, '+inf', FILLER)
end
