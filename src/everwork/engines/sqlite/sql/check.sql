-- Purpose: find out which leases are still held.
-- Inputs: a JSON object {"key": attempt, ...}. Returns: keys of held leases; keys of jobs cancelled during that
--   attempt.

-- name: held
SELECT l.key, l.attempt
FROM json_each(?1) o
CROSS JOIN ew_leased l ON l.key = CAST(o.key AS INTEGER) AND l.attempt = o.value;

-- name: cancelled
SELECT f.key, f.attempt
FROM json_each(?1) o
CROSS JOIN ew_job j ON j.key = CAST(o.key AS INTEGER)
CROSS JOIN ew_finished f ON f.queue = j.queue AND f.state = 5 AND f.key = j.key AND f.attempt = o.value
WHERE f.kind = 'cancel';
