-- Purpose: take back leases that have lapsed, as long as no other attempt has begun, and undo what the lapse counted.
-- Inputs: sorted keys and their attempts (a key may occur with several), lease_ms, the instant, the text that marks
--   automatic requeues. Returns: nothing.

-- The jobs are locked first: what follows sees all that others have done to them until then. A lapse without due_at_ms
-- was counted by another store or version. Its counts are deltas, as any: negative ones.
CREATE OR REPLACE FUNCTION {schema}.reclaim_jobs(leased_keys bigint[], leased_attempts int[], lease_ms bigint,
  at_ms bigint, automatic text)
RETURNS void LANGUAGE plpgsql {plan} AS $$
BEGIN
  PERFORM 1 FROM finished f WHERE f.ctid = ANY(ARRAY(
    SELECT p.ctid FROM unnest(leased_keys) AS o(key)
    CROSS JOIN LATERAL (SELECT a.queue_id FROM job a WHERE a.key = o.key LIMIT 1) j
    CROSS JOIN LATERAL (
      SELECT a.ctid FROM finished a WHERE a.queue_id = j.queue_id AND a.state = 4 AND a.key = o.key LIMIT 1) p))
  FOR UPDATE;
  PERFORM 1 FROM live l WHERE l.key = ANY(leased_keys) AND l.state + 0 < 2 ORDER BY l.key FOR UPDATE;
  WITH lapsed AS MATERIALIZED (
    SELECT h.* FROM unnest(leased_keys, leased_attempts) AS o(key, attempt)
    CROSS JOIN LATERAL (
      SELECT a.* FROM history a WHERE a.key = o.key AND a.attempt = o.attempt AND a.step = 0 LIMIT 1) h
    WHERE h.kind = 'lapse'),
  taken AS (
    UPDATE live l SET state = 2, lease_until_ms = reclaim_jobs.at_ms + lease_ms, activated_at_ms = o.activated_at_ms,
      run_at_ms = coalesce(o.due_at_ms, least(l.run_at_ms, o.activated_at_ms)),
      attempts = coalesce(o.attempts, greatest(l.attempts, 1)),
      max_attempts = greatest(l.max_attempts, o.attempts), worker = o.worker
    FROM lapsed o WHERE o.key = l.key AND o.attempt = l.attempt AND l.state + 0 < 2
    RETURNING l.key, l.attempt, l.queue_id, l.lane_id, true AS was_pending),
  gone AS (
    DELETE FROM finished f WHERE f.ctid = ANY(ARRAY(SELECT p.ctid FROM lapsed o
      CROSS JOIN LATERAL (SELECT a.queue_id FROM job a WHERE a.key = o.key LIMIT 1) j
      CROSS JOIN LATERAL (SELECT a.ctid, a.attempt FROM finished a
        WHERE a.queue_id = j.queue_id AND a.state = 4 AND a.key = o.key LIMIT 1) p
      WHERE p.attempt = o.attempt)) RETURNING f.*),
  placed AS (
    INSERT INTO live (key, run_at_ms, activated_at_ms, expires_at_ms, lease_until_ms, queue_id, lane_id, attempt,
      state, rank, attempts, max_attempts, worker)
    SELECT g.key, g.run_at_ms, o.activated_at_ms, j.expires_at_ms, reclaim_jobs.at_ms + lease_ms,
      g.queue_id, g.lane_id, g.attempt, 2, g.rank, g.attempts, g.max_attempts, o.worker
    FROM gone g JOIN lapsed o ON o.key = g.key AND o.attempt = g.attempt
    CROSS JOIN LATERAL (SELECT a.expires_at_ms FROM job a WHERE a.key = g.key LIMIT 1) j),
  undone AS MATERIALIZED (
    SELECT o.*, t.queue_id, t.lane_id, t.was_pending FROM lapsed o JOIN (
      SELECT * FROM taken UNION ALL SELECT g.key, g.attempt, g.queue_id, g.lane_id, false FROM gone g) t
      ON t.key = o.key AND t.attempt = o.attempt),
  forgotten AS (  -- With the lapse also the requeue that followed it.
    DELETE FROM history h WHERE (h.key, h.attempt) IN (SELECT u.key, u.attempt FROM undone u)
    RETURNING h.key, h.step, h.error),
  rounds AS (
    UPDATE job j SET rounds = j.rounds - 1
    WHERE j.key = ANY(ARRAY(SELECT f.key FROM forgotten f WHERE f.step = 1 AND f.error = automatic))),
  counted AS (
    INSERT INTO count_delta (queue_id, tenant, pending, failed, processing)
    SELECT x.queue_id, x.tenant, -count(*) FILTER (WHERE u.was_pending), -count(*) FILTER (WHERE NOT u.was_pending),
      count(*)
    FROM undone u JOIN lane x ON x.id = u.lane_id GROUP BY 1, 2),
  worked AS (
    INSERT INTO work_delta (hour, queue_id, worker, failed, retried, execution_ms, wait_ms)
    SELECT u.at_ms / 3600000, u.queue_id, u.worker, -count(*) FILTER (WHERE u.retry_at_ms IS NULL),
      -count(u.retry_at_ms), 0,
      -sum(greatest(0, u.activated_at_ms - u.due_at_ms))
    FROM undone u WHERE u.due_at_ms IS NOT NULL GROUP BY 1, 2, 3)
  INSERT INTO measure_delta (hour, queue_id, jobs, execution, wait, sort)
  SELECT u.at_ms / 3600000, u.queue_id, -count(*), {no_bucket}, bucket_of(u.activated_at_ms - u.due_at_ms), {lapsed}
  FROM undone u WHERE u.due_at_ms IS NOT NULL GROUP BY 1, 2, 5;
END $$;
