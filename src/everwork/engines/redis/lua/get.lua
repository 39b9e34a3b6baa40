-- Purpose: read whole jobs by key.
-- Inputs: now; ids. Returns: the five lists of parts/jobs.lua.
-- Parts: prelude records jobs
local ids = {}
for i = 2, #ARGV do ids[i - 1] = ARGV[i] end
return {read_jobs(ids)}
