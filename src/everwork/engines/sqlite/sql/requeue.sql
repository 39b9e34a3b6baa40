-- Purpose: requeue dead letters, or reset jobs that are waiting for a retry.
-- Inputs: keys. Returns: the max_attempts that the job was created with; whether a pending job had an attempt since
--   its creation or last requeue.

-- name: created_with
SELECT max_attempts FROM ew_job WHERE key = ?;

-- name: is_tried
SELECT ?2 > 0 AND NOT EXISTS (SELECT 1 FROM ew_history WHERE key = ?1 AND attempt = ?2 AND step = 1);
