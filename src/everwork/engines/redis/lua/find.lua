-- Purpose: ids of jobs that may match a filter, newest first, with their states; scans a bounded number.
-- Inputs: now; the cursor (ids below it); the most ids to scan; the letters of the states; of pending jobs 'd' for due
--   ones only, 't' for tried ones only; the instants, in 15 digits, from which and before which they were created;
--   texts that their states must contain.
-- Returns: the next cursor ('' at the end), ids, states, now, the number scanned.
-- Failed and cancelled jobs have indexes of their own, live ones are few; for completed ones the buckets are walked.
-- Parts: records candidates
local below, step, states, from, before = ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[6], ARGV[7]
local is_due, is_tried = string.find(ARGV[5], 'd', 1, true), string.find(ARGV[5], 't', 1, true)

local function fits(record)
  local created = sub(record, 16, 30)
  if created < from or created >= before or not string.find(states, sub(record, 31, 31), 1, true) then return false end
  if is_tried and sub(record, 31, 34) == 'p\n0\n' then return false end
  for i = 8, #ARGV do
    if not string.find(record, ARGV[i], 31, true) then return false end
  end
  return true
end

local ids, next_below
if not string.find(states, 'c', 1, true) then
  ids, next_below = by_index(below, step, states, is_due and NOW or '+inf')
end
if not ids then ids, next_below = by_walking(below, step) end
local found, records = {}, {}
for i, record in ipairs(fetch(STATES, ids)) do
  if record and fits(record) then found[#found + 1], records[#records + 1] = ids[i], record end
end
return {next_below, found, records, NOW, #ids}
