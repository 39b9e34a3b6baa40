-- Purpose: accept jobs, all or none. The same statement runs in the user's own transaction, with any driver.
-- Inputs: one document, see functions/create.sql. Returns: the new keys, the keys to return, whether a worker is
--   waiting.

-- name: repeated
-- The producer's last number and the keys returned for it; the key of an earlier job is negative.
SELECT number, keys FROM {schema}.producer WHERE id = $1;

-- name: create
SELECT fresh, keys, is_awaited FROM {schema}.create_jobs($1::jsonb);

-- name: create_one
SELECT new_key, is_awaited, is_handed FROM {schema}.create_one($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12);
