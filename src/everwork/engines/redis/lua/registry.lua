-- Purpose: types and their switches, groups, entries with or without an end, turns.
-- Inputs: now; what to do; its values. Returns: see each.
-- Parts: records effects places endings removal upkeep
local A, B, C = ARGV[3], ARGV[4], ARGV[5]
local T = P .. ':t:' .. (A or '')

local function see(type)
  call('HSET', P .. ':t:' .. type, 'known', 1)
  call('SADD', P .. ':types', type)
end

local function groups_of(type)
  local groups = {}
  for group in string.gmatch(call('HGET', P .. ':t:' .. type, 'groups') or '', '[^\31]+') do groups[#groups + 1] = group end
  return groups
end

local function is_over(till) return till ~= '' and tonumber(till) <= now end

local act = {}

function act.pause() -- type, '1' or '0'.
  see(A)
  call('HSET', T, 'paused', B)
  woken[A] = true
  for _, group in ipairs(groups_of(A)) do woken[A .. '\31' .. group] = true end
end

function act.set_policy() -- type, policy or '', the max_attempts of the policy.
  see(A)
  if B == '' then call('HDEL', T, 'policy', 'max') else call('HSET', T, 'policy', B, 'max', C) end
end

function act.add_group() -- type, group.
  see(A)
  local groups = groups_of(A)
  call('SREM', P .. ':dropped', A .. '\31' .. B)
  for _, group in ipairs(groups) do if group == B then return end end
  groups[#groups + 1] = B
  table.sort(groups)
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

function act.types() -- -> per type its name and a flat list of its fields.
  local out = {}
  for _, type in ipairs(call('SMEMBERS', P .. ':types')) do
    out[#out + 1] = type
    out[#out + 1] = call('HGETALL', P .. ':t:' .. type)
  end
  return out
end

function act.register() -- kind and name in one text, ttl or '', body.
  local till = B == '' and '' or fmt('%.0f', now + tonumber(B))
  call('HSET', P .. ':registry', A, till .. '\n' .. C)
end

function act.unregister() -- kind and name -> 1 if it was there and had not run out.
  local entry = call('HGET', P .. ':registry', A)
  if not entry then return 0 end
  call('HDEL', P .. ':registry', A)
  return is_over(string.match(entry, '^(%d*)\n')) and 0 or 1
end

function act.registered() -- -> kind and name, end and body, flat; those that have run out are left out.
  local out, entries = {}, call('HGETALL', P .. ':registry')
  for i = 1, #entries, 2 do
    if not is_over(string.match(entries[i + 1], '^(%d*)\n')) then
      out[#out + 1] = entries[i]
      out[#out + 1] = entries[i + 1]
    end
  end
  return out
end

function act.take_turn() -- name, holder, ttl -> 1 if the holder has it now.
  local till, who = string.match(call('HGET', P .. ':turns', A) or '0\n', '^(%d+)\n(.*)$')
  if who ~= B and tonumber(till) > now then return 0 end
  call('HSET', P .. ':turns', A, fmt('%.0f', now + tonumber(C)) .. '\n' .. B)
  return 1
end

local out = act[ARGV[2]]()
finish()
return out
