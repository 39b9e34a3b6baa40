-- Purpose: keys that may match a filter, newest first.
-- Inputs: queue, cursor (keys below it), bound. Returns: keys; the jobs are then read by get.sql and matched.

-- name: all
SELECT key FROM {schema}.job WHERE key < $1 ORDER BY key DESC LIMIT $2;

-- name: pending
SELECT key FROM {schema}.live WHERE queue_id = $1 AND key < $2 AND state + 0 < 2 ORDER BY key DESC LIMIT $3;

-- name: processing
SELECT key FROM {schema}.live WHERE queue_id = $1 AND key < $2 AND state = 2 ORDER BY key DESC LIMIT $3;

-- name: finished
SELECT key FROM {schema}.finished WHERE queue_id = $1 AND state = $4 AND key < $2 ORDER BY key DESC LIMIT $3;

-- name: queues
SELECT id, type, grp FROM {schema}.queue;
