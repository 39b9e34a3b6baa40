-- Purpose: delete finished jobs with everything that belongs to them.
-- Inputs: records, traits, effects; ids and records of jobs that exist.
local function forget(part, ids, runs)
  for at = 1, #runs, 3 do call('HDEL', part .. runs[at], unpack(ids, runs[at + 1], runs[at + 2])) end
end

local function remove(ids, records)
  if #ids == 0 then return end
  local fields, histories, buckets = {}, {}, {}
  local runs = runs_of(ids)
  for i, field in ipairs(fetch(DEDUPE_FIELDS, ids, runs)) do
    if field then fields[#fields + 1] = field end
    local r = parse(sub(records[i], 31))
    count(r, r.state, -1)
    buckets[sub(ids[i], 1, 13)] = true
    if r.state == 'f' then unschedule_requeue(ids[i], r) end
    if r.state ~= 'c' or r.attempt ~= '1' then histories[#histories + 1] = P .. ':h:' .. ids[i] end
  end
  for _, part in ipairs({STATES, PAYLOADS, ERRORS, RESULTS, DEDUPE_FIELDS, OWN_POLICIES, REQUEUE_ROUNDS}) do
    forget(part, ids, runs)
  end
  for _, index in ipairs({FAILED, FAILED_AT, CANCELLED, EXPIRY}) do call_many('ZREM', index, ids) end
  call_many('HDEL', P .. ':dedupe', fields)
  for i = 1, #histories, CHUNK do
    call('UNLINK', unpack(histories, i, math.min(i + CHUNK - 1, #histories)))
  end
  for bucket in pairs(buckets) do
    if call('EXISTS', STATES .. bucket) == 0 then call('ZREM', P .. ':buckets', bucket) end
  end
end
