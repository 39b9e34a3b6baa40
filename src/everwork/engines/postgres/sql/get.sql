-- Purpose: find jobs by key, live or finished.
-- Inputs: keys. Returns: a job's status (where), the whole job (job), its history (history, end). Uses LATERAL and
--   LIMIT, because a plan cached while the tables were empty would scan them.

-- name: where
SELECT j.key, coalesce(f.state, CASE l.state WHEN 2 THEN 2 ELSE 1 END), coalesce(f.attempt, l.attempt),
  coalesce(f.attempts, l.attempts), coalesce(f.max_attempts, l.max_attempts),
  CASE f.state WHEN 3 THEN 'complete' ELSE f.kind END, coalesce(f.untold, false)
FROM {schema}.job j LEFT JOIN LATERAL (SELECT * FROM {schema}.live a WHERE a.key = j.key LIMIT 1) l ON true
LEFT JOIN LATERAL (SELECT * FROM {schema}.finished a
  WHERE a.queue_id = j.queue_id AND a.state IN (3, 4, 5) AND a.key = j.key LIMIT 1) f ON true
WHERE j.key = ANY($1::bigint[]);

-- name: job
-- The first columns are the arguments of job_from in engines/rules.py, in the same order.
SELECT j.key, q.type, q.grp,
  coalesce(f.state, CASE l.state WHEN 2 THEN 2 ELSE 1 END), j.variables, j.headers, r.body, -coalesce(f.rank, l.rank),
  coalesce(f.attempt, l.attempt), coalesce(f.attempts, l.attempts), coalesce(f.max_attempts, l.max_attempts),
  j.created_at_ms, coalesce(f.run_at_ms, l.run_at_ms),
  coalesce(f.activated_at_ms, CASE l.state WHEN 2 THEN l.activated_at_ms END), l.lease_until_ms, f.finished_at_ms,
  j.expires_at_ms, j.timeout_ms, coalesce(f.worker, l.worker),
  CASE WHEN f.key IS NOT NULL THEN f.error ELSE (
    SELECT CASE WHEN h.kind <> 'requeue' THEN h.error END FROM {schema}.history h
    WHERE h.key = j.key AND h.kind <> 'release' ORDER BY h.attempt DESC, h.step DESC LIMIT 1) END,
  f.code, f.kind, j.dedupe_key, j.correlation_id, j.copy_of, j.extra,
  x.tenant, nullif(x.limit_key, '') AS limit_key, j.max_attempts AS created_max_attempts, j.retry
FROM {schema}.job j JOIN {schema}.queue q ON q.id = j.queue_id JOIN {schema}.lane x ON x.id = j.lane_id
LEFT JOIN LATERAL (SELECT * FROM {schema}.live a WHERE a.key = j.key LIMIT 1) l ON true
LEFT JOIN LATERAL (SELECT * FROM {schema}.finished a
  WHERE a.queue_id = j.queue_id AND a.state IN (3, 4, 5) AND a.key = j.key LIMIT 1) f ON true
LEFT JOIN {schema}.result r ON r.key = j.key
WHERE j.key = ANY($1::bigint[]);

-- name: history
SELECT h.key, h.attempt, h.kind, h.at_ms, h.worker, h.error, h.activated_at_ms, h.retry_at_ms, h.traceback
FROM {schema}.history h WHERE h.key = ANY($1::bigint[]) ORDER BY h.key, h.attempt, h.step;

-- name: end
SELECT f.key, f.attempt, coalesce(f.kind, 'complete'), f.finished_at_ms, f.worker, f.error, f.activated_at_ms,
  NULL::bigint
FROM {schema}.job j CROSS JOIN LATERAL (
  SELECT * FROM {schema}.finished a WHERE a.queue_id = j.queue_id AND a.state IN (3, 5) AND a.key = j.key LIMIT 1) f
WHERE j.key = ANY($1::bigint[]);
