-- Purpose: read the engine's current time.
-- Inputs: now. Returns: milliseconds UTC.
-- Parts: prelude records
return NOW
