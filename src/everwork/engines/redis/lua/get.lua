-- Purpose: jobs by key, whole.
-- Inputs: now; ids. Returns: the five lists of parts/whole.lua.
-- Parts: records whole
local ids = {}
for i = 2, #ARGV do ids[i - 1] = ARGV[i] end
return {whole(ids)}
