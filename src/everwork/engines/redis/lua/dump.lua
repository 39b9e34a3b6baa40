-- Purpose: read whole jobs with keys above a given one, lowest first.
-- Inputs: now; the id to start after; the maximum number of jobs.
-- Returns: ids, the five lists of parts/jobs.lua, own policies, histories.
-- Parts: prelude records jobs
local after, limit, ids = ARGV[2], tonumber(ARGV[3]), {}
local first = '[' .. sub(after, 1, 13)
while #ids < limit do
  local buckets = call('ZRANGEBYLEX', P .. ':buckets', first, '+', 'LIMIT', 0, 1)
  if not buckets[1] then break end
  local found = {}
  for _, id in ipairs(call('HKEYS', STATES .. buckets[1])) do
    if id > after then found[#found + 1] = id end
  end
  table.sort(found)
  for _, id in ipairs(found) do if #ids < limit then ids[#ids + 1] = id end end
  first = '(' .. buckets[1]
end
local histories = {}
for i, id in ipairs(ids) do histories[i] = call('LRANGE', P .. ':h:' .. id, 0, -1) end
local states, payloads, errors, results, ends = read_jobs(ids)
return {ids, states, payloads, errors, results, ends, fetch(OWN_POLICIES, ids), histories}
