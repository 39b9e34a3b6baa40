-- Purpose: what the core must know to decide what follows a failed attempt.
-- Inputs: now; ids. Returns: per id, flat: '' unless it is processing, else attempt, attempts, max; and the policy that holds, or ''.
-- Parts: records
local ids, out, policies = {}, {}, {}
for i = 2, #ARGV do ids[i - 1] = ARGV[i] end
local records, own = fetch(S, ids), fetch(OWN, ids)
for i = 1, #ids do
  local r = records[i] and parse(sub(records[i], 31))
  if r and r.state == 'r' then
    local type = type_of(r.queue)
    if policies[type] == nil then policies[type] = call('HGET', P .. ':t:' .. type, 'policy') end
    out[2 * i - 1] = r.attempt .. ' ' .. r.attempts .. ' ' .. r.max
    out[2 * i] = own[i] or policies[type] or ''
  else
    out[2 * i - 1], out[2 * i] = '', ''
  end
end
return out
