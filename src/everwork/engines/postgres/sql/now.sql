-- Purpose: the engine's current time.
-- Inputs: a fixed time set by a test, or null. Returns: milliseconds UTC.

-- name: now
SELECT {schema}.now_ms($1::bigint);
