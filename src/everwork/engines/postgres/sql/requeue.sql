-- Purpose: bring dead letters back.
-- Inputs: keys in their order, now, max_attempts (NULL: as created). Returns: those brought back, as they were found.

-- name: requeue
WITH gone AS (
  DELETE FROM {schema}.finished f USING {schema}.job j
  WHERE j.key = ANY($1::bigint[]) AND f.queue_id = j.queue_id AND f.state = 4 AND f.key = j.key
  RETURNING f.*, j.max_attempts AS created_max, j.expires_at_ms),
placed AS (
  INSERT INTO {schema}.live (key, run_at_ms, activated_at_ms, expires_at_ms, queue_id, lane_id, attempt, state, rank, max_attempts)
  SELECT key, {schema}.now_ms($2), {schema}.now_ms($2), expires_at_ms, queue_id, lane_id, attempt, 1, rank, coalesce($3::smallint, created_max) FROM gone),
recorded AS (
  INSERT INTO {schema}.history (key, attempt, step, kind, at_ms) SELECT key, attempt, 1, 'requeue', {schema}.now_ms($2) FROM gone),
counted AS (
  INSERT INTO {schema}.count_delta (queue_id, tenant, failed, pending)
  SELECT x.queue_id, x.tenant, -count(*), count(*) FROM gone g JOIN {schema}.lane x ON x.id = g.lane_id GROUP BY 1, 2)
SELECT g.key, 4, g.attempts, g.max_attempts, q.type FROM gone g JOIN {schema}.queue q ON q.id = g.queue_id;
