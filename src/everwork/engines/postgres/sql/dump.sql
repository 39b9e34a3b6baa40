-- Purpose: the next jobs of the store, lowest key first.
-- Inputs: a key, limit. Returns: the keys over it; the jobs are then read by get.sql.

-- name: keys
SELECT key FROM {schema}.job WHERE key > $1 ORDER BY key LIMIT $2;
