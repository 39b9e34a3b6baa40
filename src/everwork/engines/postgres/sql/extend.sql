-- Purpose: let live leases end later.
-- Inputs: keys, attempts, how long, now. Returns: the leases that hold.

-- name: extend
UPDATE {schema}.live SET lease_until_ms = {schema}.now_ms($4) + $3
WHERE key = ANY(ARRAY(SELECT l.key FROM unnest($1::bigint[], $2::int[]) AS o(key, attempt)
  CROSS JOIN LATERAL (SELECT l.key FROM {schema}.live l WHERE l.key = o.key AND l.attempt = o.attempt AND l.state + 0 = 2 FOR NO KEY UPDATE) l))
  AND state + 0 = 2
RETURNING key, attempt;
