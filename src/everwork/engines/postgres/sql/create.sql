-- Purpose: accept jobs, all or none. The same statement runs in the user's own transaction, with any driver.
-- Inputs: one document, see functions/create.sql. Returns: the new keys, the keys to return, whether a worker waits.

-- name: create
SELECT fresh, keys, is_awaited FROM {schema}.create_jobs($1::jsonb);
