-- Purpose: the names of keys, and a job's state as one short string.
-- Inputs: prelude.
--
-- A job's id is its key in 16 digits, so that ids sort as text. Jobs are stored in buckets of 1,000 ids, one hash per
-- bucket and kind of value: s state, j payload (written once, and parsed here only for its first line), e last error
-- (code \0 text), o result, k dedupe field, p own policy, a number of automatic requeues.
-- State: run_at (15 digits), created_at (15 digits), then the tail, which most jobs of a batch share:
--   state, attempt, attempts, max, created max, priority, queue, lane, expires, copy of, kind, activated, finished,
--   worker
-- state: p pending, r processing, c completed, f failed, x cancelled. queue: type, or type \31 group.
-- A job whose state is missing or damaged is removed from the index where it is found, and added to P:damaged, which
-- `everwork doctor` reads.
-- lane: '' or tenant \31 limit key. In all scripts `record` is a state, `r` is its parsed tail.
local STATES, PAYLOADS, ERRORS, RESULTS = P .. ':s:', P .. ':j:', P .. ':e:', P .. ':o:'
local DEDUPE_FIELDS, OWN_POLICIES, REQUEUE_ROUNDS = P .. ':k:', P .. ':p:', P .. ':a:'
local LEASES, EXPIRY = P .. ':leases', P .. ':expiry'
local FAILED, CANCELLED, FAILED_AT = P .. ':failed', P .. ':cancelled', P .. ':failed-at'
-- Redis stores a small set or hash as a list that every write scans; one long member converts it to a tree or table
-- permanently.
local FILLER = string.rep('~', 65)
local CHUNK = 2000 -- Lua cannot unpack more than about 7,900 values; an even number, for pairs.

-- A server that is out of memory refuses a script whose first write may allocate. After this write, which allocates
-- nothing, it allows others: accepted jobs must be leased, settled and deleted even then. Scripts that create jobs do
-- not use it.
local function allow_writes_when_full() call('ZREM', LEASES, '') end

local function call_many(command, key, args) -- Uses one call, or several if unpack would overflow.
  local n = #args
  if n == 0 then return end
  if n <= CHUNK then return call(command, key, unpack(args)) end
  for i = 1, n, CHUNK do call(command, key, unpack(args, i, math.min(i + CHUNK - 1, n))) end
end

-- Runs of ids in the same bucket, flat: bucket, first, last. The result can be reused for calls with the same ids.
local function runs_of(ids)
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

local function fetch(part, ids, runs) -- One kind of value of the jobs, in the order of ids; false where there is none.
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
    call_many('HSET', part .. runs[at], args)
  end
end

local function put(part, id, value) call('HSET', part .. sub(id, 1, 13), id, value) end
local function drop(part, id) call('HDEL', part .. sub(id, 1, 13), id) end

local TAIL = '^(%a)\n(%d+)\n(%d+)\n(%d+)\n(%d+)\n(%-?%d+)\n([^\n]*)\n([^\n]*)\n(%d*)\n(%d*)\n(%a*)\n(%d*)\n(%d*)\n(.*)$'
local parsed = {}
local function parse(tail) -- Returns false if the state is damaged. The result is shared: never change it.
  local r = parsed[tail]
  if r ~= nil then return r end
  local state, attempt, attempts, max, created_max, priority, queue, lane, expires, copy, kind, activated, finished,
    worker = string.match(tail, TAIL)
  r = state and {state = state, attempt = attempt, attempts = attempts, max = max, created_max = created_max,
    priority = priority, queue = queue, lane = lane, expires = expires, copy = copy, kind = kind,
    activated = activated, finished = finished, worker = worker} or false
  parsed[tail] = r
  return r
end

local function state_of(id) -- Returns nothing if the job does not exist, or its state is damaged.
  local record = call('HGET', STATES .. sub(id, 1, 13), id)
  local tail = record and sub(record, 31)
  if tail and parse(tail) then return record, tail end
end

local function tail_of(r, state, attempt, attempts, max, kind, activated, finished, worker)
  return table.concat({state, attempt, attempts, max, r.created_max, r.priority, r.queue, r.lane, r.expires, r.copy,
    kind, activated, finished, worker}, '\n')
end

local function tenant_of(lane) return lane == '' and '' or string.match(lane, '^(.-)\31') end
local function type_of(queue) return string.match(queue, '^([^\31]*)') end

local function create_store() -- Works even after the database was flushed while an engine is running.
  call('SETNX', P .. ':version', '@SCHEMA_VERSION@')
  call('ZADD', LEASES, '+inf', FILLER)
end
