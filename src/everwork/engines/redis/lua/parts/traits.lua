-- Purpose: the traits of a type, read once per script. Inputs: records.
-- The hash of a type: known, paused, groups, policy (a string that no script parses), max and rules (its numbers, see
--   below); for its breaker: failures, breaker (open until), probe (id and attempt); per group: asked \n group (the
--   time of the last demand) and window \n group (its rate window: when it started, how many jobs have started in it);
--   parked: see parts/claim.lua.
local RULES = {'breaker_failures', 'breaker_ms', 'max_running', 'max_per_key', 'rate_jobs', 'rate_ms', 'requeue_ms',
  'requeue_rounds', 'keep_c', 'keep_f'} -- One word each; '-' means no rule.
local traits = {}

local function trait_of(type) -- Code that writes one of these fields to the hash must also update it here.
  local t = traits[type]
  if t then return t end
  local key = P .. ':t:' .. type
  local got = call('HMGET', key, 'known', 'paused', 'groups', 'max', 'rules', 'breaker', 'failures', 'probe', 'asked\n',
    'parked')
  t = {key = key, type = type, known = got[1], paused = got[2] == '1', groups = got[3] or '', max = got[4],
    asked = got[9], parked = got[10]}
  if got[5] then
    local i = 0
    for word in string.gmatch(got[5], '%S+') do
      i = i + 1
      t[RULES[i]] = tonumber(word)
    end
  end
  t.breaker, t.failures = tonumber(got[6]), tonumber(got[7])
  if got[8] then t.probe, t.probe_attempt = string.match(got[8], '^(%d+) (%d+)$') end
  traits[type] = t
  return t
end

local by_queue = {}
local function trait_for(queue) -- The traits of the type of a queue; called for every job.
  local t = by_queue[queue]
  if not t then
    t = trait_of(type_of(queue))
    by_queue[queue] = t
  end
  return t
end

local function queues_of(t) -- The queues of all groups, the default group first.
  local queues = {t.type}
  for group in string.gmatch(t.groups, '[^\31]+') do queues[#queues + 1] = t.type .. '\31' .. group end
  return queues
end

local function is_probe_live(t) -- Whether the probe of a half-open breaker is still leased.
  local _, tail = state_of(t.probe or '')
  local r = tail and parse(tail)
  return r ~= nil and r.state == 'r' and r.attempt == t.probe_attempt
end
