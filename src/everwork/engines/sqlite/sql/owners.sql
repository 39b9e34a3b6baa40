-- Purpose: the tenants of jobs, without reading the rest.
-- Inputs: keys. Returns: key and lane of the jobs that exist.

-- name: owners
SELECT j.key, j.lane FROM json_each(?) k CROSS JOIN ew_job j ON j.key = k.value;
