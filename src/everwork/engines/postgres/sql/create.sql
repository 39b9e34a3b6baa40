-- Purpose: accept jobs, all or none. The same statement runs in the user's own transaction, on any driver.
-- Inputs: one document, see functions/create.sql. Returns: the keys given, and the keys to answer.

-- name: create
SELECT fresh, keys FROM {schema}.create_jobs($1::jsonb);
