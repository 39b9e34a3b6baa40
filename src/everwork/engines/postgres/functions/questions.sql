-- Purpose: questions that read every type. Indexes are used even while the tables have no statistics: they may grow
--   so fast that the server has not analyzed them yet, and a plan for a few types would take minutes.
-- Inputs and returns: see count.sql, stats.sql and oldest.sql.

CREATE OR REPLACE FUNCTION {schema}.count_jobs()
RETURNS TABLE (tenant text, type text, grp text, pending bigint, processing bigint, completed bigint, failed bigint,
  cancelled bigint)
LANGUAGE sql STABLE {plan} AS $$
  WITH s AS MATERIALIZED (
    SELECT c.queue_id, c.tenant, sum(c.pending)::bigint AS pending, sum(c.processing)::bigint AS processing,
      sum(c.completed)::bigint AS completed, sum(c.failed)::bigint AS failed, sum(c.cancelled)::bigint AS cancelled
    FROM (SELECT queue_id, tenant, pending, processing, completed, failed, cancelled FROM count_total
      UNION ALL SELECT queue_id, tenant, pending, processing, completed, failed, cancelled FROM count_delta) c
    GROUP BY 1, 2)
  SELECT s.tenant, q.type, q.grp, s.pending, s.processing, s.completed, s.failed, s.cancelled
  FROM s CROSS JOIN LATERAL (SELECT x.type, x.grp FROM queue x WHERE x.id = s.queue_id LIMIT 1) q ORDER BY 2, 3, 1
$$;

CREATE OR REPLACE FUNCTION {schema}.hours_after(first bigint)
RETURNS TABLE (hour int, type text, worker text, completed bigint, failed bigint, retried bigint, execution_ms bigint,
  wait_ms bigint)
LANGUAGE sql STABLE {plan} AS $$
  WITH s AS MATERIALIZED (
    SELECT w.hour, w.queue_id, w.worker, sum(w.completed) AS completed, sum(w.failed) AS failed,
      sum(w.retried) AS retried, sum(w.execution_ms) AS execution_ms, sum(w.wait_ms) AS wait_ms
    FROM (SELECT hour, queue_id, worker, completed, failed, retried, execution_ms, wait_ms FROM work_hour
      UNION ALL SELECT hour, queue_id, worker, completed, failed, retried, execution_ms, wait_ms FROM work_delta) w
    WHERE w.hour > first GROUP BY 1, 2, 3)
  SELECT s.hour, q.type, s.worker, sum(s.completed)::bigint, sum(s.failed)::bigint, sum(s.retried)::bigint,
    sum(s.execution_ms)::bigint, sum(s.wait_ms)::bigint
  FROM s CROSS JOIN LATERAL (SELECT x.type FROM queue x WHERE x.id = s.queue_id LIMIT 1) q GROUP BY 1, 2, 3
  HAVING sum(s.completed) + sum(s.failed) + sum(s.retried) <> 0 ORDER BY 1, 2, 3
$$;

CREATE OR REPLACE FUNCTION {schema}.oldest_jobs(at_ms bigint, looks_max int)
RETURNS TABLE (type text, grp text, run_at_ms bigint)
LANGUAGE sql STABLE {plan} AS $$
  -- The first job of each lane and priority has waited longest, so one index probe for each is enough. Queues are also
  -- found in the index, so those without pending jobs cost nothing.
  WITH RECURSIVE head AS (
    (SELECT j.queue_id AS id, j.lane_id, j.rank, j.run_at_ms, 1 AS looks FROM live j WHERE j.state = 1
     ORDER BY j.queue_id, j.lane_id, j.rank, j.run_at_ms, j.key LIMIT 1)
    UNION ALL
    SELECT h.queue_id, h.lane_id, h.rank, h.run_at_ms, CASE WHEN h.queue_id = b.id THEN b.looks + 1 ELSE 1 END
    FROM head b CROSS JOIN LATERAL (
      SELECT j.queue_id, j.lane_id, j.rank, j.run_at_ms FROM live j WHERE j.state = 1
        AND (j.queue_id, j.lane_id, j.rank)
          > (b.id, CASE WHEN b.looks < looks_max THEN b.lane_id ELSE 2147483647 END, b.rank)
      ORDER BY j.queue_id, j.lane_id, j.rank, j.run_at_ms, j.key LIMIT 1) h),
  due AS (
    (SELECT j.queue_id AS id, j.run_at_ms FROM live j WHERE j.state = 0
     ORDER BY j.queue_id, j.run_at_ms, j.key LIMIT 1)
    UNION ALL
    SELECT h.queue_id, h.run_at_ms FROM due b CROSS JOIN LATERAL (
      SELECT j.queue_id, j.run_at_ms FROM live j WHERE j.state = 0 AND j.queue_id > b.id
      ORDER BY j.queue_id, j.run_at_ms, j.key LIMIT 1) h)
  SELECT q.type, q.grp, min(w.run_at_ms) FROM (SELECT id, run_at_ms FROM head UNION ALL SELECT id, run_at_ms FROM due) w
  CROSS JOIN LATERAL (SELECT x.type, x.grp FROM queue x WHERE x.id = w.id AND NOT x.dropped LIMIT 1) q
  WHERE w.run_at_ms <= at_ms GROUP BY 1, 2 ORDER BY 1, 2
$$;
