-- Purpose: lease jobs, and settle earlier ones in the same call.
-- Inputs: one document, see functions/activate.sql. Returns: leased jobs and notes.

-- name: step
SELECT * FROM {schema}.step($1::jsonb);
