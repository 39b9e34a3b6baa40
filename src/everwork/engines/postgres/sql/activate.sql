-- Purpose: lease jobs; fused with settle.
-- Inputs: one document, see functions/activate.sql. Returns: leased jobs and notes.

-- name: step
SELECT * FROM {schema}.step($1::jsonb);
