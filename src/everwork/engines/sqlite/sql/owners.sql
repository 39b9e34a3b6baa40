-- Purpose: read the tenants of jobs, and nothing else.
-- Inputs: keys. Returns: the key and lane of each job that exists.

-- name: owners
SELECT j.key, j.lane FROM json_each(?) k CROSS JOIN ew_job j ON j.key = k.value;
