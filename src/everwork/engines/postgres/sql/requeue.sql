-- Purpose: requeue dead letters, or reset jobs that are waiting for a retry.
-- Inputs: sorted keys, now, max_attempts (NULL: as created), a note for the history, new variables (NULL: unchanged),
--   whether the requeue is automatic (then only jobs whose type's policy allows it and that have not expired are
--   requeued). Returns: the requeued jobs, as they were before.

-- name: requeue
-- Uses LATERAL and LIMIT, as in get.sql.
WITH gone AS (
  DELETE FROM {schema}.finished f WHERE f.ctid = ANY(ARRAY(SELECT p.ctid FROM {schema}.job j
    CROSS JOIN LATERAL (SELECT a.ctid, a.finished_at_ms, a.kind FROM {schema}.finished a
      WHERE a.queue_id = j.queue_id AND a.state = 4 AND a.key = j.key LIMIT 1) p
    CROSS JOIN LATERAL (SELECT t.requeue_ms, t.requeue_rounds FROM {schema}.queue q
      JOIN {schema}.type t ON t.name = q.type WHERE q.id = j.queue_id LIMIT 1) r
    WHERE j.key = ANY($1::bigint[])
      AND (NOT $6::boolean OR (
        p.finished_at_ms <= {schema}.now_ms($2) - r.requeue_ms
        AND coalesce(j.rounds, 0) < r.requeue_rounds AND p.kind <> 'reject'
        AND coalesce(j.expires_at_ms > {schema}.now_ms($2), true))))) RETURNING f.*),
placed AS (
  INSERT INTO {schema}.live (key, run_at_ms, activated_at_ms, expires_at_ms, queue_id, lane_id, attempt, state, rank,
    max_attempts)
  SELECT g.key, {schema}.now_ms($2), {schema}.now_ms($2), j.expires_at_ms, g.queue_id, g.lane_id, g.attempt, 1, g.rank,
    coalesce($3::smallint, j.max_attempts)
  FROM gone g
  CROSS JOIN LATERAL (SELECT a.expires_at_ms, a.max_attempts FROM {schema}.job a WHERE a.key = g.key LIMIT 1) j),
recorded AS (
  INSERT INTO {schema}.history (key, attempt, step, kind, at_ms, error)
  SELECT key, attempt, 1, 'requeue', {schema}.now_ms($2), $4::text FROM gone),
changed AS (
  UPDATE {schema}.job SET rounds = CASE WHEN $6 THEN coalesce(rounds, 0) + 1 ELSE rounds END,
    variables = coalesce($5, variables)
  WHERE key = ANY(ARRAY(SELECT key FROM gone WHERE $6 OR $5::text IS NOT NULL))),
counted AS (
  INSERT INTO {schema}.count_delta (queue_id, tenant, failed, pending)
  SELECT x.queue_id, x.tenant, -count(*), count(*) FROM gone g JOIN {schema}.lane x ON x.id = g.lane_id GROUP BY 1, 2),
told AS (
  INSERT INTO {schema}.open_lane_delta (queue_id, lanes)
  SELECT g.queue_id, array_agg(DISTINCT g.lane_id) FROM gone g JOIN {schema}.queue q ON q.id = g.queue_id
  JOIN {schema}.type t ON t.name = q.type WHERE t.lane_max_running IS NOT NULL AND q.fair GROUP BY 1)
SELECT g.key, 4, g.attempts, g.max_attempts, q.type FROM gone g JOIN {schema}.queue q ON q.id = g.queue_id;

-- name: waiting
-- Resets pending jobs that had an attempt since their creation or last requeue. A concurrent requeue of the same job
-- may have written its entry already. Inputs: sorted keys, now, a note for the history, new variables.
WITH held AS MATERIALIZED (
  SELECT l.* FROM {schema}.live l
  WHERE l.key = ANY($1::bigint[]) AND l.state + 0 < 2 AND l.attempt > 0 AND NOT EXISTS (
    SELECT 1 FROM {schema}.history h WHERE h.key = l.key AND h.attempt = l.attempt AND h.step = 1)
  ORDER BY l.key FOR UPDATE OF l),
moved AS (
  UPDATE {schema}.live l SET run_at_ms = least(l.run_at_ms, {schema}.now_ms($2)), state = 1, attempts = 0,
    activated_at_ms = {schema}.now_ms($2),
    max_attempts = (SELECT j.max_attempts FROM {schema}.job j WHERE j.key = l.key)
  WHERE l.key = ANY(ARRAY(SELECT key FROM held))),
recorded AS (
  INSERT INTO {schema}.history AS h (key, attempt, step, kind, at_ms, error)
  SELECT key, attempt, 1, 'requeue', {schema}.now_ms($2), $3::text FROM held
  ON CONFLICT (key, attempt, step) DO UPDATE SET error = coalesce(excluded.error, h.error)),
changed AS (
  UPDATE {schema}.job SET variables = $4
  WHERE key = ANY(ARRAY(SELECT key FROM held WHERE $4::text IS NOT NULL))),
told AS (
  INSERT INTO {schema}.open_lane_delta (queue_id, lanes)
  SELECT g.queue_id, array_agg(DISTINCT g.lane_id) FROM held g JOIN {schema}.queue q ON q.id = g.queue_id
  JOIN {schema}.type t ON t.name = q.type WHERE t.lane_max_running IS NOT NULL AND q.fair GROUP BY 1)
SELECT h.key, 1, h.attempts, h.max_attempts, q.type FROM held h JOIN {schema}.queue q ON q.id = h.queue_id;
