-- Purpose: take back leases that have lapsed, as long as no other attempt has begun.
-- Inputs: keys, attempts, lease_ms, now. Returns: the leases that were taken back.

-- name: reclaim
WITH lapsed AS MATERIALIZED (
  SELECT h.key, h.attempt, h.worker, h.activated_at_ms
  FROM unnest($1::bigint[], $2::int[]) AS o(key, attempt)
  JOIN {schema}.history h ON h.key = o.key AND h.attempt = o.attempt AND h.step = 0 AND h.kind = 'lapse'),
was AS MATERIALIZED (
  SELECT l.key FROM {schema}.live l JOIN lapsed o ON o.key = l.key AND o.attempt = l.attempt
  WHERE l.state + 0 < 2 ORDER BY l.key FOR UPDATE OF l),
taken AS (
  UPDATE {schema}.live l SET state = 2, lease_until_ms = {schema}.now_ms($4) + $3, activated_at_ms = o.activated_at_ms,
    run_at_ms = least(l.run_at_ms, o.activated_at_ms), worker = o.worker
  FROM lapsed o WHERE o.key = l.key AND l.key = ANY(ARRAY(SELECT w.key FROM was w))
  RETURNING l.key, l.lane_id, l.attempt),
gone AS (
  DELETE FROM {schema}.finished f WHERE f.ctid = ANY(ARRAY(SELECT p.ctid FROM lapsed o
    CROSS JOIN LATERAL (SELECT a.queue_id FROM {schema}.job a WHERE a.key = o.key LIMIT 1) j
    CROSS JOIN LATERAL (SELECT a.ctid, a.attempt FROM {schema}.finished a
      WHERE a.queue_id = j.queue_id AND a.state = 4 AND a.key = o.key LIMIT 1) p
    WHERE p.attempt = o.attempt)) RETURNING f.*),
placed AS (
  INSERT INTO {schema}.live (key, run_at_ms, activated_at_ms, expires_at_ms, lease_until_ms, queue_id, lane_id, attempt,
    state, rank, attempts, max_attempts, worker)
  SELECT g.key, least(g.run_at_ms, o.activated_at_ms), o.activated_at_ms, j.expires_at_ms, {schema}.now_ms($4) + $3,
    g.queue_id, g.lane_id, g.attempt, 2, g.rank, g.attempts, g.max_attempts, o.worker
  FROM gone g JOIN lapsed o ON o.key = g.key
  CROSS JOIN LATERAL (SELECT a.expires_at_ms FROM {schema}.job a WHERE a.key = g.key LIMIT 1) j),
forgotten AS (
  DELETE FROM {schema}.history h WHERE h.step = 0
    AND (h.key, h.attempt) IN (SELECT t.key, t.attempt FROM taken t UNION ALL SELECT g.key, g.attempt FROM gone g)),
counted AS (
  INSERT INTO {schema}.count_delta (queue_id, tenant, pending, failed, processing)
  SELECT x.queue_id, x.tenant, -count(*) FILTER (WHERE c.was_pending),
    -count(*) FILTER (WHERE NOT c.was_pending), count(*)
  FROM (SELECT t.lane_id, true AS was_pending FROM taken t UNION ALL SELECT g.lane_id, false FROM gone g) c
  JOIN {schema}.lane x ON x.id = c.lane_id GROUP BY 1, 2)
SELECT key, attempt FROM taken UNION ALL SELECT key, attempt FROM gone;
