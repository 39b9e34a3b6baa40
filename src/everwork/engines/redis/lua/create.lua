-- Purpose: accept jobs, all or none.
-- Inputs: now; jobs, see parts/intake.lua.
-- Returns: the first key if every job has a new one and no copies; else per job its id, with '=' in front of an earlier
--   job's.
-- Parts: records traits running effects queues intake
local result, first = accept(2, function() return true end)
finish()
return first or result
