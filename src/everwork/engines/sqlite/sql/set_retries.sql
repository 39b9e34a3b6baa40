-- Purpose: set the number of attempts that a job has left.
-- Inputs: max_attempts, and the key of the job's row. Returns: nothing.

-- name: ready
UPDATE ew_ready SET max_attempts = ? WHERE queue = ? AND lane = ? AND urgency = ? AND run_at_ms = ? AND key = ?;

-- name: future
UPDATE ew_future SET max_attempts = ? WHERE queue = ? AND run_at_ms = ? AND key = ?;

-- name: leased
UPDATE ew_leased SET max_attempts = ? WHERE key = ?;
