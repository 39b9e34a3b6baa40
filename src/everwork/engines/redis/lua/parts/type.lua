-- Purpose: delete types that have no jobs.
-- Inputs: records, traits, running, effects, queues, entries, recount. LOOKUPS limits one call, during which the server
--   serves no other client.
local LOOKUPS = 20000

local function types_with_jobs() -- The fields of the counts consist of state, queue and tenant.
  local types = {}
  for _, field in ipairs(call('HKEYS', P .. ':n')) do types[string.match(field, '^%a\n([^\31\n]*)')] = true end
  return types
end

local function kept_hours() return call('ZRANGE', P .. ':hours', 0, -1) end

local function has_statistics(type, hours)
  for i = #hours, 1, -1 do
    if call('EXISTS', P .. ':m:' .. hours[i] .. ':' .. type) == 1 then return true end
  end
  return false
end

-- Deletes the statistics of a type in one hour; returns how many sums it has read.
local function delete_hour(type, hour)
  if call('UNLINK', P .. ':m:' .. hour .. ':' .. type) == 0 then return 1 end
  local key, gone = P .. ':w:' .. hour, {}
  local fields = call('HKEYS', key)
  for _, field in ipairs(fields) do
    if string.match(field, '^%a+\n([^\n]*)\n') == type then gone[#gone + 1] = field end
  end
  call_many('HDEL', key, gone)
  return #fields
end

local function delete_type(type)
  local t = trait_of(type)
  for _, queue in ipairs(all_queues_of(t)) do
    forget_recount(queue)
    call('UNLINK', lanes_key(queue), full_key(queue), run_key(queue), future_key(queue), P .. ':served:' .. queue,
      P .. ':turn:' .. queue)
    call('HDEL', P .. ':bell', 'w' .. queue)
    call('SREM', P .. ':dropped', queue)
  end
  for _, kept in ipairs({'c:', 'f:'}) do
    call('UNLINK', P .. ':old:' .. kept .. type, P .. ':loaded:' .. kept .. type)
  end
  call('UNLINK', t.key, P .. ':again:' .. type)
  call('SREM', P .. ':agains', type)
  call('SREM', P .. ':keeps', type)
  call('SREM', P .. ':types', type)
  forget_entry('owner\0' .. type)
  traits[type], by_queue = nil, {}
end

local function last_asked(t)
  local last, fields = nil, call('HGETALL', t.key)
  for i = 1, #fields, 2 do
    if sub(fields[i], 1, 6) == 'asked\n' then last = math.max(last or 0, tonumber(fields[i + 1])) end
  end
  return last
end

-- Whether nothing is configured for a type, and no demand has named it since `before`. Also returns its last demand.
local function is_idle(type, policy, before)
  local t = trait_of(type)
  if not t.known or t.paused or t.breaker or t.groups ~= '' then return false end
  if (call('HGET', t.key, 'policy') or '') ~= policy or call('HEXISTS', ENTRIES, 'owner\0' .. type) == 1 then
    return false
  end
  local asked = last_asked(t)
  return not asked or asked <= before, asked
end
