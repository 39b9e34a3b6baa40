-- Purpose: accept jobs, all or none. The same statement runs in the user's own transaction, on any driver.
-- Inputs: one document, see functions/create.sql. Returns: the keys given, the keys to answer, whether a worker waits.

-- name: create
SELECT fresh, keys, is_awaited FROM {schema}.create_jobs($1::jsonb);
