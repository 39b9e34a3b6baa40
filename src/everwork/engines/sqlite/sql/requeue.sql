-- Purpose: make dead letters pending again, or let jobs that wait for a retry start afresh.
-- Inputs: keys. Returns: the max_attempts that the job was created with; whether a pending job was tried since its
--   creation or its last requeue.

-- name: created_with
SELECT max_attempts FROM ew_job WHERE key = ?;

-- name: is_tried
SELECT ?2 > 0 AND NOT EXISTS (SELECT 1 FROM ew_history WHERE key = ?1 AND attempt = ?2 AND step = 1);
