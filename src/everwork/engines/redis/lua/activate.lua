-- Purpose: promote due jobs and lease the first jobs of each lane in claim order (guarantee G9).
-- Inputs: now; claims, see parts/claim.lua.
-- Returns: the reply of parts/claim.lua.
-- Parts: prelude records traits running effects queues endings claim
allow_writes_when_full()
local out = activate(2)
finish()
return answered(out)
