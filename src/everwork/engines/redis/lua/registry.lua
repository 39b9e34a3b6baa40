-- Purpose: manage types (pauses, policies, breakers), groups, registry entries, turns and the marks of triggers.
-- Inputs: now; the name of an action; its arguments. Returns: see each action.
-- Parts: prelude records traits running effects breakers queues endings removal entries policies recount upkeep marks switch type
-- These limit one call, during which the server serves no other client.
local ENTRIES_BYTES, TYPES_STEP = 4000000, 1000

local function register_type(type)
  local t = trait_of(type)
  call('HSET', t.key, 'known', 1)
  call('SADD', P .. ':types', type)
  return t
end

local function groups_of(type)
  local groups = {}
  for group in string.gmatch(call('HGET', P .. ':t:' .. type, 'groups') or '', '[^\31]+') do
    groups[#groups + 1] = group
  end
  return groups
end

local function is_over(till) return till ~= '' and tonumber(till) <= now end

-- Returns the name to continue after ('' if there were fewer names than `most`), then, flat, the entries that have not
-- expired.
local function entries_of(names, most)
  local out, size = {''}, 0
  for i, name in ipairs(names) do
    local entry, at = call('HGET', ENTRIES, name), #out
    if entry and not is_over(string.match(entry, '^(%d*)\n')) then
      out[at + 1], out[at + 2] = name, entry
      size = size + #entry
    end
    if size >= ENTRIES_BYTES or i == most then
      out[1] = name
      break
    end
  end
  return out
end

local act = {}

function act.pause(type, paused) -- paused: '1' or '0'.
  local t = register_type(type)
  wake(t)
  call('HSET', t.key, 'paused', paused)
end

function act.open_breaker(type, open_ms)
  open_breaker(register_type(type), tonumber(open_ms))
end

function act.reset_breaker(type) -- Returns 1 unless the breaker was closed.
  local t = trait_of(type)
  local was_closed = not t.breaker
  if t.breaker or t.failures then close_breaker(t) end
  return was_closed and 0 or 1
end

-- policy: '' for none; rules: as parts/traits.lua reads them. Returns what count_on does.
function act.set_policy(type, policy, max_attempts, rules)
  local before = register_type(type)
  if policy == '' then
    call('HDEL', before.key, 'policy', 'max', 'rules')
  else
    call('HSET', before.key, 'policy', policy, 'max', max_attempts, 'rules', rules)
  end
  traits[type], by_queue = nil, {}
  local t = trait_of(type)
  switch_limits(before, t)
  switch_finished(before, t)
  wake(t)
  return act.count_on()
end

function act.count_on() -- Returns 1 if there is more: a new limit is guaranteed only once all running jobs are counted.
  return recount_some() and 1 or 0
end

function act.add_group(type, name)
  local t = register_type(type)
  local groups, queue = groups_of(type), type .. '\31' .. name
  restore_group(queue)
  for _, group in ipairs(groups) do if group == name then return end end
  groups[#groups + 1] = name
  table.sort(groups)
  if trait_of(type).max_per_key then begin_count(queue) end
  call('HSET', t.key, 'groups', table.concat(groups, '\31'))
end

-- Cancels at most `limit` pending jobs of the group; returns how many, or nothing if the group does not exist.
function act.drop_group(type, name, limit)
  local groups, queue = {}, type .. '\31' .. name
  local is_known = call('SISMEMBER', P .. ':dropped', queue) == 1
  for _, group in ipairs(groups_of(type)) do
    if group == name then is_known = true else groups[#groups + 1] = group end
  end
  if not is_known then return false end
  call('HSET', P .. ':t:' .. type, 'groups', table.concat(groups, '\31'))
  call('SADD', P .. ':dropped', queue)
  return cancel_queue(queue, "group '" .. name .. "' was dropped", tonumber(limit))
end

-- Reads some of the types. Returns now and the cursor of the next call, '0' at the end; then per type its name, a flat
-- list of its fields, and 1 if a probe is running. A type can be returned twice.
function act.types(cursor)
  local scan = call('SSCAN', P .. ':types', cursor, 'COUNT', TYPES_STEP)
  local out = {NOW, scan[1]}
  for _, type in ipairs(scan[2]) do
    local at, fields = #out, call('HGETALL', P .. ':t:' .. type)
    out[at + 1], out[at + 2], out[at + 3] = type, fields, 0
    for i = 1, #fields, 2 do
      if fields[i] == 'probe' and is_probe_live(trait_of(type)) then out[at + 3] = 1 end
    end
  end
  return out
end

-- Checks a type before its statistics are deleted. Returns a verdict.
function act.deletable(type)
  if not trait_of(type).known then return 'not found' end
  return types_with_jobs()[type] and 'wrong state' or 'accepted'
end

function act.delete_statistics(type, last_hour) -- Returns the hour to continue after, '' at the end.
  local read = 0
  for _, hour in ipairs(kept_hours()) do
    if last_hour == '' or tonumber(hour) > tonumber(last_hour) then
      read = read + delete_hour(type, hour)
      if read >= LOOKUPS then return hour end
    end
  end
  return ''
end

function act.delete_type(type) -- Returns a verdict.
  local verdict = act.deletable(type)
  if verdict == 'accepted' then delete_type(type) end
  return verdict
end

-- Inputs: how long a type must have been unused; then types and the policy of each, '' for none. Returns how many of
-- the types were checked, and the names of those that were deleted.
function act.forget_types(unused_ms)
  local before, hours = now - tonumber(unused_ms), kept_hours()
  local with_jobs, looked, out, i = types_with_jobs(), 0, {0}, 4
  while i < #ARGV and looked < LOOKUPS do
    local type = ARGV[i]
    local idle, asked = is_idle(type, ARGV[i + 1], before)
    looked = looked + (idle and asked and #hours or 1)
    -- A type that was never requested has no statistics.
    if idle and not with_jobs[type] and not (asked and has_statistics(type, hours)) then
      delete_type(type)
      out[#out + 1] = type
    end
    i, out[1] = i + 2, out[1] + 1
  end
  return out
end

function act.register(name, ttl_ms, body) -- name: kind and name in one string; ttl_ms: '' for none.
  local till = ttl_ms == '' and '' or fmt('%.0f', now + tonumber(ttl_ms))
  put_entry(name, till, body)
end

function act.unregister(name) -- Returns 1 if the entry existed and had not expired.
  local entry = call('HGET', ENTRIES, name)
  if not entry then return 0 end
  forget_entry(name)
  return is_over(string.match(entry, '^(%d*)\n')) and 0 or 1
end

function act.upgrade() -- Called when the store has everything that this version needs.
  call('SET', P .. ':version', '@SCHEMA_VERSION@')
end

function act.index() -- Sorts entries that were written by a version without the sorted set.
  if call('HLEN', ENTRIES) == call('ZCARD', ENTRY_NAMES) then return end
  local pairs_of = {}
  for i, name in ipairs(call('HKEYS', ENTRIES)) do pairs_of[2 * i - 1], pairs_of[2 * i] = 0, name end
  call_many('ZADD', ENTRY_NAMES, pairs_of)
end

-- prefix: of a kind's names, '' for all; last_name: the name to continue after, '' for the first.
-- Returns the name to continue after, '' at the end; then flat pairs: a string made of kind and name; a string made of
-- expiry and body.
function act.registered(prefix, last_name)
  local from = last_name ~= '' and '(' .. last_name or '[' .. prefix
  local to = prefix ~= '' and '(' .. prefix .. '\255' or '+'
  return entries_of(call('ZRANGEBYLEX', ENTRY_NAMES, from, to, 'LIMIT', 0, CHUNK), CHUNK)
end

function act.last_registered(prefix, below, limit) -- Below a name, highest first; returns the same as registered.
  local most = math.min(tonumber(limit), CHUNK)
  return entries_of(call('ZREVRANGEBYLEX', ENTRY_NAMES, '(' .. below, '[' .. prefix, 'LIMIT', 0, most), most)
end

function act.take_turn(name, holder, ttl_ms) -- Returns 1 if the holder now has the turn.
  local till, owner = string.match(call('HGET', P .. ':turns', name) or '0\n', '^(%d+)\n(.*)$')
  if owner ~= holder and tonumber(till) > now then return 0 end
  call('HSET', P .. ':turns', name, fmt('%.0f', now + tonumber(ttl_ms)) .. '\n' .. holder)
  return 1
end

function act.subscribe(type, worker) -- Returns the worker's group.
  local owner = call('HGET', ENTRIES, 'owner\0' .. type)
  if owner and string.match(owner, '\n(.*)$') == worker then return '' end
  local has_group = false
  for _, group in ipairs(groups_of(type)) do if group == worker then has_group = true end end
  if owner or has_group then
    if not has_group then act.add_group(type, worker) end
    return worker
  end
  register_type(type)
  put_entry('owner\0' .. type, '', worker)
  return ''
end

-- Takes triggers. Returns now; then for each trigger, when it started and the last scheduled time that has passed.
function act.trigger_marks()
  local out = {NOW}
  for i = 3, #ARGV do
    local began, last = mark_of(ARGV[i])
    if not began then
      began, last = NOW, NOW
      put_mark(ARGV[i], began, last)
    end
    out[i - 1] = began .. ' ' .. last
  end
  return out
end

local out = act[ARGV[2]](ARGV[3], ARGV[4], ARGV[5], ARGV[6])
finish()
return out
