-- Purpose: explain why a job is not running.
-- Inputs: key, the maximum number of jobs ahead to count, now. Returns: the job's state, the type's pause, breaker and
--   limits, when a worker last polled, and how many jobs are ahead in the lane, all in one snapshot.

-- name: explain
SELECT coalesce(f.state, CASE l.state WHEN 2 THEN 2 ELSE 1 END), q.type, q.grp, coalesce(f.run_at_ms, l.run_at_ms),
  t.paused, t.breaker_failures, t.breaker_open_until_ms, t.breaker_probe_key, q.asked_at_ms,
  CASE WHEN l.state < 2 THEN (SELECT count(*) FROM (
    SELECT 1 FROM {schema}.live a WHERE a.state = 1 AND a.queue_id = l.queue_id AND a.lane_id = l.lane_id
    AND (a.rank, a.run_at_ms, a.key) < (l.rank, l.run_at_ms, l.key) LIMIT $2) n) ELSE 0 END,
  l.worker, l.lease_until_ms, t.policy, nullif(x.limit_key, ''),
  CASE WHEN t.max_running IS NULL THEN 0 ELSE (
    SELECT count(*) FROM {schema}.live a WHERE a.state = 2 AND a.queue_id = l.queue_id) END,
  CASE WHEN t.lane_max_running IS NULL THEN 0 ELSE (
    SELECT count(*) FROM {schema}.live a WHERE a.state = 2 AND a.queue_id = l.queue_id AND a.lane_id = l.lane_id) END,
  p.key IS NOT NULL,
  CASE WHEN g.started >= t.rate_jobs AND abs({schema}.now_ms($3) - g.since_ms) < t.rate_ms
    THEN g.since_ms + t.rate_ms END
FROM {schema}.job j JOIN {schema}.queue q ON q.id = j.queue_id JOIN {schema}.type t ON t.name = q.type
JOIN {schema}.lane x ON x.id = j.lane_id LEFT JOIN {schema}.gate g ON g.queue_id = j.queue_id
LEFT JOIN LATERAL (SELECT * FROM {schema}.live a WHERE a.key = j.key LIMIT 1) l ON true
LEFT JOIN LATERAL (SELECT * FROM {schema}.finished a
  WHERE a.queue_id = j.queue_id AND a.state IN (3, 4, 5) AND a.key = j.key LIMIT 1) f ON true
LEFT JOIN LATERAL (SELECT a.key FROM {schema}.live a
  WHERE a.key = t.breaker_probe_key AND a.attempt = t.breaker_probe_attempt AND a.state + 0 = 2 LIMIT 1) p ON true
WHERE j.key = $1;
