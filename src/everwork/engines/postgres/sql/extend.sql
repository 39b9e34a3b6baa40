-- Purpose: extend live leases.
-- Inputs: keys, attempts, lease_ms, now. Returns: the leases that are held now. A lease whose job is being settled,
--   possibly in a long user transaction, is skipped so that the others do not wait for it; extend_locked then
--   handles the leases that were not extended. A lease that is held is always extended: in its job's row, or in the
--   registry.

-- name: extend
UPDATE {schema}.live SET lease_until_ms = {schema}.now_ms($4) + $3
WHERE key = ANY(ARRAY(SELECT l.key FROM unnest($1::bigint[], $2::int[]) AS o(key, attempt)
  CROSS JOIN LATERAL (SELECT l.key FROM {schema}.live l
    WHERE l.key = o.key AND l.attempt = o.attempt AND l.state + 0 = 2 FOR NO KEY UPDATE SKIP LOCKED) l))
  AND state + 0 = 2
RETURNING key, attempt;

-- name: extend_locked
SELECT * FROM {schema}.extend_locked($1, $2, $3, {schema}.now_ms($4));
