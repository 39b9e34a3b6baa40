-- Purpose: list the ids and states of jobs that may match a filter, in order; scans a bounded number of jobs.
-- Inputs: now; the order: 'n' for newest first, 'd' for earliest due first, 'f' for latest failure first; the time and
--   the id of the cursor (only the id for 'n'); the maximum number of ids to scan; the type, or ''; the letters of the
--   states; for pending jobs, 'd' to include only due jobs, 't' to include only jobs that had an attempt; the range of
--   creation times (15 digits; the start is inclusive, the end exclusive); strings that a job's state must contain.
-- Returns: the time and the id of the next cursor (the id is '' at the end), ids, their times, states, now, and the
--   number of ids scanned. Returns nothing if the pending jobs are spread over too many lanes to sort.
-- The order 'k' lists the jobs that hold the given dedupe keys, unsorted. Inputs: now; 'k'; the dedupe fields.
--   Returns: now, ids.
-- Failed and cancelled jobs have their own indexes, and live jobs are few; for completed jobs, the buckets are scanned.
-- Parts: prelude records candidates ordered
if ARGV[2] == 'k' then
  local holders = {}
  for i = 3, #ARGV do holders[#holders + 1] = call('HGET', P .. ':dedupe', ARGV[i]) or nil end
  return {NOW, holders}
end
local order, instant, id, step, type, states = ARGV[2], tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5]), ARGV[6], ARGV[7]
local is_due, is_tried = string.find(ARGV[8], 'd', 1, true), string.find(ARGV[8], 't', 1, true)
local from, before = ARGV[9], ARGV[10]

local function fits(record)
  local created = sub(record, 16, 30)
  if created < from or created >= before or not string.find(states, sub(record, 31, 31), 1, true) then return false end
  if is_tried and sub(record, 31, 34) == 'p\n0\n' then return false end
  for i = 11, #ARGV do
    if not string.find(record, ARGV[i], 31, true) then return false end
  end
  return true
end

local ids, instants, next_id, next_instant = nil, {}, '', '0'
if order == 'n' then
  if not string.find(states, 'c', 1, true) then ids, next_id = by_index(id, step, states, is_due and NOW or '+inf') end
  if not ids then ids, next_id = by_walking(id, step) end
else
  local places
  if order == 'd' then places = due_places(type, {instant, id}, step, is_due and now or math.huge)
  else places = failed_places({instant, id}, step) end
  if not places then return false end
  ids = {}
  for i, place in ipairs(places) do ids[i], instants[i] = place[2], fmt('%.0f', place[1]) end
  if #ids == step then next_id, next_instant = ids[step], instants[step] end
end
local found, at, records = {}, {}, {}
for i, record in ipairs(fetch(STATES, ids)) do
  if record and fits(record) then
    found[#found + 1], at[#at + 1], records[#records + 1] = ids[i], instants[i] or '0', record
  end
end
return {next_instant, next_id, found, at, records, NOW, #ids}
