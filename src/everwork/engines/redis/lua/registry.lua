-- Purpose: types and their switches, groups, entries with or without an end, turns.
-- Inputs: now; what to do; its values. Returns: see each.
-- Parts: records traits running effects breakers places endings removal entries policies recount upkeep marks switch
local A, B, C = ARGV[3], ARGV[4], ARGV[5]
local T = P .. ':t:' .. (A or '')
local ENTRIES_BYTES = 4000000 -- Of one call: nobody else is served meanwhile.

local function see(type)
  local t = trait_of(type)
  call('HSET', t.key, 'known', 1)
  call('SADD', P .. ':types', type)
  return t
end

local function groups_of(type)
  local groups = {}
  for group in string.gmatch(call('HGET', P .. ':t:' .. type, 'groups') or '', '[^\31]+') do groups[#groups + 1] = group end
  return groups
end

local function is_over(till) return till ~= '' and tonumber(till) <= now end

local function entries_of(names, most) -- Those that have not run out, flat, after the name to go on behind, '' if there were fewer names than `most`.
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

function act.pause() -- type, '1' or '0'.
  wake(see(A))
  call('HSET', T, 'paused', B)
end

function act.open_breaker() -- type, for how long.
  open_breaker(see(A), tonumber(B))
end

function act.reset_breaker() -- type -> 1 unless the breaker was closed.
  local t = trait_of(A)
  local was_closed = not t.breaker
  if t.breaker or t.failures then close_breaker(t) end
  return was_closed and 0 or 1
end

function act.set_policy() -- type, policy or '', its max_attempts, its rules as parts/traits.lua reads them -> see count_on.
  local before = see(A)
  if B == '' then call('HDEL', T, 'policy', 'max', 'rules') else call('HSET', T, 'policy', B, 'max', C, 'rules', ARGV[6]) end
  traits[A], by_queue = nil, {}
  local t = trait_of(A)
  switch_limits(before, t)
  switch_finished(before, t)
  wake(t)
  return act.count_on()
end

function act.count_on() -- Until all that runs is counted no limit that is new holds for sure -> 1 if there is more.
  return recount_some() and 1 or 0
end

function act.add_group() -- type, group.
  see(A)
  local groups = groups_of(A)
  appear_again(A .. '\31' .. B)
  for _, group in ipairs(groups) do if group == B then return end end
  groups[#groups + 1] = B
  table.sort(groups)
  if trait_of(A).max_per_key then begin_count(A .. '\31' .. B) end
  call('HSET', T, 'groups', table.concat(groups, '\31'))
end

function act.drop_group() -- type, group, the most jobs to cancel -> how many were; nothing if there is no such group.
  local groups, queue, is_known = {}, A .. '\31' .. B, call('SISMEMBER', P .. ':dropped', A .. '\31' .. B) == 1
  for _, group in ipairs(groups_of(A)) do
    if group == B then is_known = true else groups[#groups + 1] = group end
  end
  if not is_known then return false end
  call('HSET', T, 'groups', table.concat(groups, '\31'))
  call('SADD', P .. ':dropped', queue)
  return cancel_queue(queue, "group '" .. B .. "' was dropped", tonumber(C))
end

function act.types() -- -> now; per type its name, a flat list of its fields, and 1 if a probe runs.
  local out = {NOW}
  for _, type in ipairs(call('SMEMBERS', P .. ':types')) do
    local at = #out
    out[at + 1], out[at + 2], out[at + 3] = type, call('HGETALL', P .. ':t:' .. type), 0
    if probe_lives(trait_of(type)) then out[at + 3] = 1 end
  end
  return out
end

function act.register() -- kind and name in one text, ttl or '', body.
  local till = B == '' and '' or fmt('%.0f', now + tonumber(B))
  put_entry(A, till, C)
end

function act.unregister() -- kind and name -> 1 if it was there and had not run out.
  local entry = call('HGET', ENTRIES, A)
  if not entry then return 0 end
  forget_entry(A)
  return is_over(string.match(entry, '^(%d*)\n')) and 0 or 1
end

function act.upgrade() -- The store has all that this version needs.
  call('SET', P .. ':version', '@SCHEMA_VERSION@')
end

function act.index() -- Puts entries in order that an Everwork without the sorted set has written.
  if call('HLEN', ENTRIES) == call('ZCARD', ENTRY_NAMES) then return end
  local pairs_of = {}
  for i, name in ipairs(call('HKEYS', ENTRIES)) do pairs_of[2 * i - 1], pairs_of[2 * i] = 0, name end
  many('ZADD', ENTRY_NAMES, pairs_of)
end

function act.registered() -- the beginning of a kind's names, '' of all; the name to go on behind, '' for the first -> the same, '' at the end; then kind and name, end and body, flat.
  local from, to = B ~= '' and '(' .. B or '[' .. A, A ~= '' and '(' .. A .. '\255' or '+'
  return entries_of(call('ZRANGEBYLEX', ENTRY_NAMES, from, to, 'LIMIT', 0, CHUNK), CHUNK)
end

function act.last_registered() -- the beginning of a kind's names, a name to stay below, the most entries -> as by registered.
  local most = math.min(tonumber(C), CHUNK)
  return entries_of(call('ZREVRANGEBYLEX', ENTRY_NAMES, '(' .. B, '[' .. A, 'LIMIT', 0, most), most)
end

function act.take_turn() -- name, holder, ttl -> 1 if the holder has it now.
  local till, who = string.match(call('HGET', P .. ':turns', A) or '0\n', '^(%d+)\n(.*)$')
  if who ~= B and tonumber(till) > now then return 0 end
  call('HSET', P .. ':turns', A, fmt('%.0f', now + tonumber(C)) .. '\n' .. B)
  return 1
end

function act.subscribe() -- type, worker -> the worker's group.
  local owner = call('HGET', ENTRIES, 'owner\0' .. A)
  if owner and string.match(owner, '\n(.*)$') == B then return '' end
  local has_group = false
  for _, group in ipairs(groups_of(A)) do if group == B then has_group = true end end
  if owner or has_group then
    if not has_group then act.add_group() end
    return B
  end
  see(A)
  put_entry('owner\0' .. A, '', B)
  return ''
end

function act.trigger_marks() -- triggers -> now; per trigger when it began and the last point that has passed.
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

local out = act[ARGV[2]]()
finish()
return out
