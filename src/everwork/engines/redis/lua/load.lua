-- Purpose: write jobs dumped from another store.
-- Inputs: now; per job id, state, payload, error or '', result or '', dedupe field or '', own policy or '', lease end
--   or '', the number of automatic requeues, the number of history entries, and the entries. Errors and results
--   are prefixed with '=', because they can be empty strings.
-- Returns: the number of jobs written; existing jobs are left unchanged.
-- Parts: prelude records traits running effects queues
local function register_queue(queue)
  local type, group = type_of(queue), string.match(queue, '\31(.*)$')
  local key = P .. ':t:' .. type
  call('HSET', key, 'known', 1)
  call('SADD', P .. ':types', type)
  if not group then return end
  restore_group(queue)
  local groups = {group}
  for known in string.gmatch(call('HGET', key, 'groups') or '', '[^\31]+') do
    if known ~= group then groups[#groups + 1] = known end
  end
  table.sort(groups)
  call('HSET', key, 'groups', table.concat(groups, '\31'))
end

local function index_job(id, state, r, till)
  if r.state == 'p' then
    enter_pending(id, r, tonumber(sub(state, 1, 15)))
  elseif r.state == 'r' then
    call('ZADD', LEASES, till, id)
    if r.expires ~= '' then call('ZADD', EXPIRY, r.expires, id) end
  else
    has_finished = true
    -- Listed by time, because jobs are not loaded in the order in which they finished; see retain_loaded.
    local kept = r.state == 'f' and 'f' or 'c'
    call('ZADD', P .. ':loaded:' .. kept_as(trait_for(r.queue), kept), r.finished, id)
    if r.state == 'f' then
      call('ZADD', FAILED, 0, id)
      call('ZADD', FAILED_AT, r.finished, id)
      schedule_requeue(id, r, r.kind, r.finished)
    elseif r.state == 'x' then
      call('ZADD', CANCELLED, 0, id)
    end
  end
end

local loaded, last, at, seen = 0, tonumber(call('GET', P .. ':seq') or 0), 2, {}
while at <= #ARGV do
  local id, state, payload, error, result, field, own, till, rounds, n = unpack(ARGV, at, at + 9)
  n = tonumber(n)
  if not state_of(id) then
    local r = parse(sub(state, 31))
    if not seen[r.queue] then register_queue(r.queue); seen[r.queue] = true end
    put(STATES, id, state)
    put(PAYLOADS, id, payload)
    call('ZADD', P .. ':buckets', 0, sub(id, 1, 13))
    if error ~= '' then put(ERRORS, id, sub(error, 2)) end
    if result ~= '' then put(RESULTS, id, sub(result, 2)) end
    if own ~= '' then put(OWN_POLICIES, id, own) end
    if rounds ~= '0' then put(REQUEUE_ROUNDS, id, rounds) end
    if field ~= '' and call('HSETNX', P .. ':dedupe', field, id) == 1 then put(DEDUPE_FIELDS, id, field) end
    if n > 0 then call('RPUSH', P .. ':h:' .. id, unpack(ARGV, at + 10, at + 9 + n)) end
    index_job(id, state, r, till)
    count(r, r.state, 1)
    loaded, last = loaded + 1, math.max(last, tonumber(id))
  end
  at = at + 10 + n
end
if loaded > 0 then call('SET', P .. ':seq', fmt('%.0f', last)) end
finish()
return loaded
