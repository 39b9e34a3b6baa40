-- Purpose: explain why a job is not running.
-- Inputs: key, now.
-- Returns: the type's pause, limits and breaker, when a worker last polled for it, and the number of jobs ahead in
--   the lane.

-- name: type
SELECT t.name, q.grp, t.policy, t.paused, q.asked_at_ms, q.running,
  COALESCE((SELECT n.busy FROM ew_lane n WHERE n.queue = j.queue AND n.lane = j.lane), 0),
  CASE WHEN q.rate_taken >= t.rate_jobs AND abs(?2 - q.rate_since_ms) < t.rate_ms
    THEN q.rate_since_ms + t.rate_ms END,
  t.breaker_failures, t.breaker_open_until_ms, t.breaker_probe_key, t.breaker_probe_attempt
FROM ew_job j JOIN ew_queue q ON q.id = j.queue JOIN ew_type t ON t.name = q.type
WHERE j.key = ?1;

-- name: lease
SELECT worker, lease_until_ms FROM ew_leased WHERE key = ?;

-- name: ahead
SELECT count(*) FROM (
  SELECT 1 FROM ew_ready
  WHERE queue = ?1 AND lane = ?2 AND (urgency, run_at_ms, key) < (?3, ?4, ?5) LIMIT ?6);
