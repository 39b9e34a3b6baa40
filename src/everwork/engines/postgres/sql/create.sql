-- Purpose: accept jobs, all or none. The same statement runs in the user's own transaction, with any driver.
-- Inputs: one document, see functions/create.sql. Returns: the new keys, the keys to return, whether a worker waits.

-- name: repeated
-- The number that a producer used last, and what was returned to it, negative where it was an earlier job's key.
SELECT number, keys FROM {schema}.producer WHERE id = $1;

-- name: create
SELECT fresh, keys, is_awaited FROM {schema}.create_jobs($1::jsonb);
