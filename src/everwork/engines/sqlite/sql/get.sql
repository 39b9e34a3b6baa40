-- Purpose: read jobs by key, in any state.
-- Inputs: keys. Returns: a job's state and row (where), the complete job (job), its history (history, end).

-- name: where
SELECT j.key, j.queue, j.lane,
  CASE WHEN f.key IS NOT NULL THEN f.state WHEN l.key IS NOT NULL THEN 2 ELSE 1 END,
  r.key IS NOT NULL, -COALESCE(v.priority, j.priority), COALESCE(v.run_at_ms, j.run_at_ms),
  COALESCE(f.attempt, l.attempt, r.attempt, u.attempt),
  COALESCE(f.attempts, l.attempts, r.attempts, u.attempts),
  COALESCE(f.max_attempts, l.max_attempts, r.max_attempts, u.max_attempts),
  COALESCE(f.activated_at_ms, l.activated_at_ms), COALESCE(f.worker, l.worker),
  CASE f.state WHEN 3 THEN 'complete' ELSE f.kind END
FROM ew_job j
LEFT JOIN ew_revision v ON v.key = j.key
LEFT JOIN ew_finished f ON f.queue = j.queue AND f.state IN (3, 4, 5) AND f.key = j.key
LEFT JOIN ew_leased l ON l.key = j.key
LEFT JOIN ew_ready r ON r.queue = j.queue AND r.lane = j.lane AND r.urgency = -COALESCE(v.priority, j.priority)
  AND r.run_at_ms = COALESCE(v.run_at_ms, j.run_at_ms) AND r.key = j.key
LEFT JOIN ew_future u ON u.queue = j.queue AND u.run_at_ms = COALESCE(v.run_at_ms, j.run_at_ms) AND u.key = j.key
WHERE j.key = ?;

-- name: job
-- The first columns are the arguments of job_from in engines/rules.py, in the same order.
SELECT j.key, q.type, q.grp,
  CASE WHEN f.key IS NOT NULL THEN f.state WHEN l.key IS NOT NULL THEN 2 ELSE 1 END,
  j.variables, j.headers, s.body, COALESCE(v.priority, j.priority),
  COALESCE(f.attempt, l.attempt, r.attempt, u.attempt),
  COALESCE(f.attempts, l.attempts, r.attempts, u.attempts),
  COALESCE(f.max_attempts, l.max_attempts, r.max_attempts, u.max_attempts),
  j.created_at_ms, COALESCE(v.run_at_ms, j.run_at_ms),
  COALESCE(f.activated_at_ms, l.activated_at_ms), l.lease_until_ms,
  f.finished_at_ms, j.expires_at_ms, j.timeout_ms, COALESCE(f.worker, l.worker),
  CASE WHEN f.key IS NOT NULL THEN f.error ELSE (
    SELECT CASE h.kind WHEN 'requeue' THEN NULL ELSE h.error END
    FROM ew_history h WHERE h.key = j.key AND h.kind <> 'release'
    ORDER BY h.attempt DESC, h.step DESC LIMIT 1) END,
  f.code, f.kind, j.dedupe_key, j.correlation_id, j.copy_of, j.extra, j.lane
FROM {keys} k CROSS JOIN ew_job j ON j.key = k.value
CROSS JOIN ew_queue q ON q.id = j.queue
LEFT JOIN ew_revision v ON v.key = j.key
LEFT JOIN ew_finished f ON f.queue = j.queue AND f.state IN (3, 4, 5) AND f.key = j.key
LEFT JOIN ew_leased l ON l.key = j.key
LEFT JOIN ew_ready r ON r.queue = j.queue AND r.lane = j.lane AND r.urgency = -COALESCE(v.priority, j.priority)
  AND r.run_at_ms = COALESCE(v.run_at_ms, j.run_at_ms) AND r.key = j.key
LEFT JOIN ew_future u ON u.queue = j.queue AND u.run_at_ms = COALESCE(v.run_at_ms, j.run_at_ms) AND u.key = j.key
LEFT JOIN ew_result s ON s.key = j.key;

-- name: history
SELECT attempt, kind, at_ms, worker, error, activated_at_ms, retry_at_ms, traceback
FROM ew_history WHERE key = ? ORDER BY attempt, step;

-- name: end
SELECT f.attempt, COALESCE(f.kind, 'complete'), f.finished_at_ms, f.worker, f.error, f.activated_at_ms
FROM ew_job j
CROSS JOIN ew_finished f ON f.queue = j.queue AND f.state IN (3, 5) AND f.key = j.key
WHERE j.key = ?;
