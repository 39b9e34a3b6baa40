-- Purpose: the tenants of jobs; nothing else of them is read.
-- Inputs: keys. Returns: key and lane of those that exist.

-- name: owners
SELECT j.key, j.lane FROM json_each(?) k CROSS JOIN ew_job j ON j.key = k.value;
