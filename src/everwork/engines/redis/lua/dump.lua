-- Purpose: jobs over a key with all that is known of them, lowest first.
-- Inputs: now; the id after which to begin; the most jobs. Returns: ids, the five lists of parts/whole.lua, own policies, histories.
-- Parts: records whole
local after, limit, ids = ARGV[2], tonumber(ARGV[3]), {}
local first = '[' .. sub(after, 1, 13)
while #ids < limit do
  local buckets = call('ZRANGEBYLEX', P .. ':buckets', first, '+', 'LIMIT', 0, 1)
  if not buckets[1] then break end
  local found = {}
  for _, id in ipairs(call('HKEYS', S .. buckets[1])) do if id > after then found[#found + 1] = id end end
  table.sort(found)
  for _, id in ipairs(found) do if #ids < limit then ids[#ids + 1] = id end end
  first = '(' .. buckets[1]
end
local histories = {}
for i, id in ipairs(ids) do histories[i] = call('LRANGE', P .. ':h:' .. id, 0, -1) end
local states, payloads, errors, results, ends = whole(ids)
return {ids, states, payloads, errors, results, ends, fetch(OWN, ids), histories}
