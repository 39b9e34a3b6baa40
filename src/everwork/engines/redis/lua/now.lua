-- Purpose: the engine's now.
-- Inputs: now. Returns: milliseconds UTC.
-- Parts: records
return NOW
