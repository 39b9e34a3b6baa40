-- Purpose: set the number of attempts that a job has left.
-- Inputs: key, new max_attempts, and the values that were read: whether the job is processing, attempt, attempts.
-- Returns: the key, if the job has not changed since it was read.

-- name: set_retries
UPDATE {schema}.live SET max_attempts = $2 WHERE key = $1 AND (state = 2) = $3 AND attempt = $4 AND attempts = $5
RETURNING key;
