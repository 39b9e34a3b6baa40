-- Purpose: accept jobs: assign keys, deduplicate, copy per group, enqueue.
-- Inputs: records, traits, effects, queues. accept(at, is_accepted) reads ARGV from `at` on:
--   heads, then per head type, lane, priority, delay or '', run_at or '', max or '', expires or '';
--   runs, then per run head, jobs, owner; then per job dedupe field or '', own policy or '', payload.
-- A run is skipped unless is_accepted(owner). Returns per job {id, or '=' and the id of an earlier one}, the first key
-- if every job got a new key and has no copies, and the next index in ARGV.
local function read_type(types, name)
  local known = types[name]
  if known then return known end
  local t = trait_of(name)
  if not t.known then
    create_store()
    call('HSET', t.key, 'known', 1)
    call('SADD', P .. ':types', name)
    t.known = '1'
  end
  known = {queues = queues_of(t), max = t.max or '@ATTEMPTS_DEFAULT@'}
  types[name] = known
  return known
end

local function read_head(types, at) -- The values that the jobs of a head share, for each group of their type.
  local type, lane, priority, delay, run_at, max, expires = unpack(ARGV, at, at + 6)
  local t = read_type(types, type)
  run_at = run_at ~= '' and tonumber(run_at) or now + tonumber(delay)
  if max == '' then max = t.max end
  local head = {copies = {}, expires = expires}
  for i, queue in ipairs(t.queues) do
    local before = fmt('%015.0f%015.0f', run_at, now)
      .. table.concat({'p', 0, 0, max, max, priority, queue, lane, expires, ''}, '\n')
    local due = run_at <= now
    head.copies[i] = {queue = queue, lane = lane, due = due, soon = run_at <= now + SOON_MS, before = before,
      members = {}, plain = before .. '\n\n\n\n', key = due and ready_key(queue, lane) or future_key(queue),
      score = due and ready_score(priority, fmt('%.0f', run_at)) or fmt('%.0f', run_at)}
  end
  return head
end

local function enqueue_accepted(heads)
  for _, head in ipairs(heads) do
    for _, copy in ipairs(head.copies) do
      local n = #copy.members / 2
      if n > 0 then
        call_many('ZADD', copy.key, copy.members)
        if copy.due then open_lane(copy.queue, copy.lane) end
        if copy.soon then woken[copy.queue] = true end
        count(copy, 'p', n)
      end
    end
  end
end

local function name_buckets(first, last)
  local names = {}
  for bucket = math.floor(first / 1000), math.floor(last / 1000) do
    names[#names + 1] = 0
    names[#names + 1] = fmt('%013.0f', bucket)
  end
  call_many('ZADD', P .. ':buckets', names)
end

local function accept(at, is_accepted)
  local heads, types, n_heads = {}, {}, tonumber(ARGV[at])
  for i = 1, n_heads do heads[i] = read_head(types, at + 1 + 7 * (i - 1)) end
  at = at + 1 + 7 * n_heads
  local n_runs, runs, needed = tonumber(ARGV[at]), at + 1, 0
  local job_at = runs + 3 * n_runs
  for i = runs, job_at - 1, 3 do needed = needed + ARGV[i + 1] * #heads[tonumber(ARGV[i])].copies end
  if needed == 0 then return {}, nil, job_at end
  local last = call('INCRBY', P .. ':seq', needed)
  local key, is_plain = last - needed, true
  local ids, states, payloads, result = {}, {}, {}, {}
  for run = runs, job_at - 1, 3 do
    local head, n = heads[tonumber(ARGV[run])], tonumber(ARGV[run + 1])
    local copies, takes = head.copies, is_accepted(tonumber(ARGV[run + 2]))
    local groups = #copies
    for _ = 1, n do
      local id, field, own, seen = fmt('%016.0f', key + 1), ARGV[job_at], ARGV[job_at + 1], nil
      if takes and field ~= '' then
        if call('HSETNX', P .. ':dedupe', field, id) == 0 then
          seen = call('HGET', P .. ':dedupe', field)
        else
          put(DEDUPE_FIELDS, id, field)
        end
      end
      if seen or not takes then
        is_plain = false
        result[#result + 1] = seen and '=' .. seen or ''
      else
        local at_id = #ids
        result[#result + 1] = id
        for c = 1, groups do
          local copy = copies[c]
          local this = c == 1 and id or fmt('%016.0f', key + c)
          at_id = at_id + 1
          ids[at_id], payloads[at_id] = this, ARGV[job_at + 2]
          states[at_id] = c == 1 and copy.plain or copy.before .. id .. '\n\n\n\n'
          local members = copy.members
          local at_member = #members
          members[at_member + 1], members[at_member + 2] = copy.score, this
          if head.expires ~= '' then call('ZADD', EXPIRY, head.expires, this) end
          if own ~= '' then put(OWN_POLICIES, this, own) end
        end
      end
      key, job_at = key + groups, job_at + 3
    end
    if groups > 1 then is_plain = false end
  end
  if #ids > 0 then
    local id_runs = runs_of(ids)
    store(PAYLOADS, ids, payloads, id_runs)
    store(STATES, ids, states, id_runs)
    name_buckets(tonumber(ids[1]), tonumber(ids[#ids]))
    enqueue_accepted(heads)
  end
  return result, is_plain and last - needed + 1 or nil, job_at
end
