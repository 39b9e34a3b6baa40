-- Purpose: promote what is due and lease the first jobs of each lane in the order of G9.
-- Inputs: now; claims, see parts/claim.lua.
-- Returns: the answer of parts/claim.lua.
-- Parts: records traits running effects places endings claim
write_though_full()
local out = activate(2)
finish()
return answered(out)
