-- Purpose: read the lanes of jobs; a lane contains the tenant.
-- Inputs: now; ids. Returns: the lane of each job, in the order of ids; false if the job does not exist.
-- Parts: prelude records
local ids, lanes = {}, {}
for i = 2, #ARGV do ids[i - 1] = ARGV[i] end
for i, record in ipairs(fetch(STATES, ids)) do
  local r = record and parse(sub(record, 31))
  lanes[i] = r and r.lane
end
return lanes
