-- Purpose: cancel pending and processing jobs.
-- Inputs: sorted keys, now, kind, reason, whether to cancel only pending jobs. Returns: the cancelled jobs, as they
--   were before the change.

-- name: cancel
WITH gone AS (
  DELETE FROM {schema}.live l WHERE l.key = ANY($1::bigint[]) AND (NOT $5 OR l.state + 0 < 2) RETURNING l.*),
kept AS (
  INSERT INTO {schema}.finished (key, run_at_ms, finished_at_ms, activated_at_ms, queue_id, lane_id, attempt, state,
    rank, attempts, max_attempts, worker, kind, error)
  SELECT key, run_at_ms, {schema}.now_ms($2), CASE state WHEN 2 THEN activated_at_ms END, queue_id, lane_id, attempt, 5,
    rank, attempts, max_attempts, worker, $3, nullif($4, '') FROM gone),
counted AS (
  INSERT INTO {schema}.count_delta (queue_id, tenant, pending, processing, cancelled)
  SELECT x.queue_id, x.tenant, -count(*) FILTER (WHERE g.state < 2), -count(*) FILTER (WHERE g.state = 2), count(*)
  FROM gone g JOIN {schema}.lane x ON x.id = g.lane_id GROUP BY 1, 2),
told AS (
  INSERT INTO {schema}.open_lane_delta (queue_id, lanes)
  SELECT g.queue_id, array_agg(DISTINCT g.lane_id) FROM gone g JOIN {schema}.queue q ON q.id = g.queue_id
  JOIN {schema}.type t ON t.name = q.type WHERE t.lane_max_running IS NOT NULL AND q.fair AND g.state = 2 GROUP BY 1)
SELECT key, CASE state WHEN 2 THEN 2 ELSE 1 END, attempts, max_attempts FROM gone;
