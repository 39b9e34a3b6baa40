-- Purpose: accept jobs, all or none.
-- Inputs: now; jobs, see parts/intake.lua.
-- Returns: the first key when every job has a new one and no copies; else per job its id, '=' in front of an earlier job's.
-- Parts: records traits running effects places intake
local result, first = accept(2, function() return true end)
finish()
return first or result
