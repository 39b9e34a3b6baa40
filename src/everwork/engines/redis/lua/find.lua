-- Purpose: ids of jobs that may match a filter, newest first, with their states; a bounded number is looked at.
-- Inputs: now; the cursor (ids below it); the most ids to look at; the states asked for, as letters; of pending jobs 'd' for only those that are due, 't' for only those that were tried;
--   the instants, in 15 digits, from which and before which they were created; texts that their states must contain.
-- Returns: where to go on (ids below it; '' at the end), ids, states, now, how many were looked at.
-- Failed and cancelled jobs have an index of their own, live ones are few; completed ones are met by walking the buckets.
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
if not string.find(states, 'c', 1, true) then ids, next_below = by_index(below, step, states, is_due and NOW or '+inf') end
if not ids then ids, next_below = by_walking(below, step) end
local found, records = {}, {}
for i, record in ipairs(fetch(S, ids)) do
  if record and fits(record) then found[#found + 1], records[#records + 1] = ids[i], record end
end
return {next_below, found, records, NOW, #ids}
