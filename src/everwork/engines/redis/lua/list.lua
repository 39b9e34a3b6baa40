-- Purpose: ids of jobs that may match a filter, newest first, with their states; a bounded number is looked at.
-- Inputs: now; the cursor (ids below it); the most ids to look at; the states asked for, as letters; '1' for only those pending jobs that are due;
--   the instants, in 15 digits, from which and before which they were created; texts that their states must contain.
-- Returns: where to go on (ids below it; '' at the end), ids, states, now, how many were looked at.
-- Failed and cancelled jobs have an index of their own, live ones are few; completed ones are met by walking the buckets.
-- Parts: records candidates
local below, step, states, from, before = ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[6], ARGV[7]

local function fits(record)
  local created = sub(record, 16, 30)
  if created < from or created >= before or not string.find(states, sub(record, 31, 31), 1, true) then return false end
  for i = 8, #ARGV do
    if not string.find(record, ARGV[i], 31, true) then return false end
  end
  return true
end

local ids, next_below
if not string.find(states, 'c', 1, true) then ids, next_below = by_index(below, step, states, ARGV[5] == '1' and NOW or '+inf') end
if not ids then ids, next_below = by_walking(below, step) end
local found, records = {}, {}
for i, record in ipairs(fetch(S, ids)) do
  if record and fits(record) then found[#found + 1], records[#records + 1] = ids[i], record end
end
return {next_below, found, records, NOW, #ids}
