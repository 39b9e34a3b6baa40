-- Purpose: bring dead letters back.
-- Inputs: keys. Returns: what the job was created with.

-- name: created_with
SELECT max_attempts FROM ew_job WHERE key = ?;
