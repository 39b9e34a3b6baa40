-- Purpose: ids of jobs that may match a filter, newest first, with their states; a bounded number.
-- Inputs: now; the cursor (ids below it); the most ids to look at; the states asked for, as letters; '1' for only those pending jobs that are due.
-- Returns: where to go on (ids below it; '' at the end), ids, states, now.
-- Failed and cancelled jobs have an index of their own, live ones are few; completed ones are met by walking the buckets.
-- Parts: records candidates
local below, step, states = ARGV[2], tonumber(ARGV[3]), ARGV[4]
local ids, next_below
if not string.find(states, 'c', 1, true) then ids, next_below = by_index(below, step, states, ARGV[5] == '1' and NOW or '+inf') end
if not ids then ids, next_below = by_walking(below, step) end
return {next_below, ids, fetch(S, ids), NOW}
