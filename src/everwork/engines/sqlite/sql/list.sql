-- Purpose: keys that may match a filter, newest first.
-- Inputs: queue, cursor (keys below it), bound. Returns: keys; the jobs are then read by get.sql and matched.

-- name: all
SELECT key FROM ew_job WHERE key < ? ORDER BY key DESC LIMIT ?;

-- name: pending
-- ?4: only what is to run until then.
SELECT key FROM (SELECT key FROM ew_ready WHERE queue = ?1 AND key < ?2 UNION ALL
  SELECT key FROM ew_future WHERE queue = ?1 AND key < ?2 AND run_at_ms <= ?4) ORDER BY key DESC LIMIT ?3;

-- name: processing
SELECT key FROM ew_leased WHERE queue = ? AND key < ? ORDER BY key DESC LIMIT ?;

-- name: finished
SELECT key FROM ew_finished WHERE queue = ?1 AND state = ?4 AND key < ?2 ORDER BY key DESC LIMIT ?3;

-- name: queues
SELECT id, type, grp FROM ew_queue;
