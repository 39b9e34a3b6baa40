-- Purpose: the lanes of jobs, which name their tenants.
-- Inputs: now; ids. Returns: the lane of each, in the order of ids; false for those that do not exist.
-- Parts: records
local ids, lanes = {}, {}
for i = 2, #ARGV do ids[i - 1] = ARGV[i] end
for i, record in ipairs(fetch(STATES, ids)) do lanes[i] = record and parse(sub(record, 31)).lane end
return lanes
