-- Purpose: read whole jobs, to copy them to another store.
-- Inputs: the key to continue after and a limit; then the keys found. Returns: the columns that get.sql does not
--   read, and the histories.

-- name: created_with
SELECT key, max_attempts, retry FROM ew_job WHERE key > ? ORDER BY key LIMIT ?;

-- name: histories
SELECT h.key, h.attempt, h.kind, h.at_ms, h.worker, h.error, h.activated_at_ms, h.retry_at_ms, h.traceback
FROM json_each(?1) k CROSS JOIN ew_history h ON h.key = k.value ORDER BY k.id, h.attempt, h.step;

-- name: ends
SELECT j.key, f.attempt, COALESCE(f.kind, 'complete'), f.finished_at_ms, f.worker, f.error, f.activated_at_ms
FROM json_each(?1) k CROSS JOIN ew_job j ON j.key = k.value
CROSS JOIN ew_finished f ON f.queue = j.queue AND f.state IN (3, 5) AND f.key = j.key;
