-- Purpose: read the next jobs of the store, lowest key first.
-- Inputs: a key, limit. Returns: the keys above the given one; get.sql then reads the jobs.

-- name: keys
SELECT key FROM {schema}.job WHERE key > $1 ORDER BY key LIMIT $2;
