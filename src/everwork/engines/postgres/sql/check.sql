-- Purpose: find out which leases are still held.
-- Inputs: keys. Returns: key and attempt of held leases; key and attempt of jobs cancelled during that attempt.

-- name: held
SELECT l.key, l.attempt FROM {schema}.live l WHERE l.key = ANY($1::bigint[]) AND l.state + 0 = 2;

-- name: cancelled
SELECT f.key, f.attempt FROM {schema}.job j
CROSS JOIN LATERAL (SELECT * FROM {schema}.finished a
  WHERE a.queue_id = j.queue_id AND a.state = 5 AND a.key = j.key LIMIT 1) f
WHERE j.key = ANY($1::bigint[]) AND f.kind = 'cancel';
