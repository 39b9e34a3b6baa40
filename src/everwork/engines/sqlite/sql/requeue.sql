-- Purpose: make dead letters pending again.
-- Inputs: keys. Returns: the max_attempts that the job was created with.

-- name: created_with
SELECT max_attempts FROM ew_job WHERE key = ?;
