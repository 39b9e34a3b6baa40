-- Purpose: check the store itself. Inputs and returns: see each statement.

-- name: has_amcheck
-- Returns the schema of the extension amcheck; nothing if it is not installed.
SELECT n.nspname FROM pg_catalog.pg_extension e JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace
WHERE e.extname = 'amcheck';

-- name: indexes
-- Returns the B-tree indexes of the store.
SELECT c.oid::regclass::text FROM pg_catalog.pg_class c JOIN pg_catalog.pg_am a ON a.oid = c.relam
JOIN pg_catalog.pg_index i ON i.indexrelid = c.oid
WHERE c.relnamespace = '{schema}'::regnamespace AND c.relkind = 'i' AND a.amname = 'btree' AND i.indisvalid
ORDER BY 1;

-- name: invalid_indexes
SELECT c.relname::text FROM pg_catalog.pg_class c JOIN pg_catalog.pg_index i ON i.indexrelid = c.oid
WHERE c.relnamespace = '{schema}'::regnamespace AND NOT i.indisvalid ORDER BY 1;

-- name: orphans
-- Reads every row, which finds pages that cannot be read; returns how many live or finished rows belong to no job.
SELECT count(*) FROM (SELECT key FROM {schema}.live UNION ALL SELECT key FROM {schema}.finished) s
WHERE NOT EXISTS (SELECT 1 FROM {schema}.job j WHERE j.key = s.key);
