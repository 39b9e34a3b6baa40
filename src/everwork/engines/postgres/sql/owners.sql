-- Purpose: the tenants of jobs, without reading the rest.
-- Inputs: keys. Returns: key and tenant of the jobs that exist.

-- name: owners
SELECT j.key, x.tenant FROM {schema}.job j
CROSS JOIN LATERAL (SELECT a.tenant FROM {schema}.lane a WHERE a.id = j.lane_id LIMIT 1) x
WHERE j.key = ANY($1::bigint[]);
