-- Purpose: the engine's now.
-- Inputs: the instant that a test dictates, or null. Returns: milliseconds UTC.

-- name: now
SELECT {schema}.now_ms($1::bigint);
