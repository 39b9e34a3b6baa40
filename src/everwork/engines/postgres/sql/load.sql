-- Purpose: write jobs dumped from another store.
-- Inputs: an array of documents, see functions/load.sql; now. Returns: how many were new.

-- name: load
SELECT {schema}.load_jobs($1::jsonb, {schema}.now_ms($2));
