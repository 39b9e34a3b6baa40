-- Purpose: read the engine's current time.
-- Inputs: the time of a test's clock, or null. Returns: milliseconds UTC.

-- name: now
SELECT {schema}.now_ms($1::bigint);
