-- Purpose: read the tenants of jobs, and nothing else.
-- Inputs: keys. Returns: the key and tenant of each job that exists.

-- name: owners
SELECT j.key, x.tenant FROM {schema}.job j
CROSS JOIN LATERAL (SELECT a.tenant FROM {schema}.lane a WHERE a.id = j.lane_id LIMIT 1) x
WHERE j.key = ANY($1::bigint[]);
