-- Purpose: extend live leases.
-- Inputs: keys, attempts, lease_ms, now. Returns: the leases that hold now. One whose job is being settled,
--   perhaps in a long transaction of a user's, is skipped: the others must not wait for it. extend_locked follows.

-- name: extend
UPDATE {schema}.live SET lease_until_ms = {schema}.now_ms($4) + $3
WHERE key = ANY(ARRAY(SELECT l.key FROM unnest($1::bigint[], $2::int[]) AS o(key, attempt)
  CROSS JOIN LATERAL (SELECT l.key FROM {schema}.live l
    WHERE l.key = o.key AND l.attempt = o.attempt AND l.state + 0 = 2 FOR NO KEY UPDATE SKIP LOCKED) l))
  AND state + 0 = 2
RETURNING key, attempt;

-- name: extend_locked
SELECT * FROM {schema}.extend_locked($1, $2, $3, {schema}.now_ms($4));
