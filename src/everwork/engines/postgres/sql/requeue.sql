-- Purpose: bring dead letters back.
-- Inputs: keys in their order, now, max_attempts (NULL: as created), what the history says. Returns: those brought back, as they were found.
-- Where the history is to say something, they come back by themselves: only if the policies of their types let them.

-- name: requeue
WITH gone AS (
  DELETE FROM {schema}.finished f USING {schema}.job j, {schema}.queue q, {schema}.type t
  WHERE j.key = ANY($1::bigint[]) AND f.queue_id = j.queue_id AND f.state = 4 AND f.key = j.key AND q.id = j.queue_id AND t.name = q.type
    AND ($4::text IS NULL OR (f.finished_at_ms <= {schema}.now_ms($2) - t.requeue_ms AND coalesce(j.rounds, 0) < t.requeue_rounds AND f.kind <> 'reject'))
  RETURNING f.*, j.max_attempts AS created_max, j.expires_at_ms),
placed AS (
  INSERT INTO {schema}.live (key, run_at_ms, activated_at_ms, expires_at_ms, queue_id, lane_id, attempt, state, rank, max_attempts)
  SELECT key, {schema}.now_ms($2), {schema}.now_ms($2), expires_at_ms, queue_id, lane_id, attempt, 1, rank, coalesce($3::smallint, created_max) FROM gone),
recorded AS (
  INSERT INTO {schema}.history (key, attempt, step, kind, at_ms, error) SELECT key, attempt, 1, 'requeue', {schema}.now_ms($2), $4 FROM gone),
rounds AS (
  UPDATE {schema}.job SET rounds = coalesce(rounds, 0) + 1 WHERE key = ANY(ARRAY(SELECT key FROM gone WHERE $4 IS NOT NULL))),
counted AS (
  INSERT INTO {schema}.count_delta (queue_id, tenant, failed, pending)
  SELECT x.queue_id, x.tenant, -count(*), count(*) FROM gone g JOIN {schema}.lane x ON x.id = g.lane_id GROUP BY 1, 2)
SELECT g.key, 4, g.attempts, g.max_attempts, q.type FROM gone g JOIN {schema}.queue q ON q.id = g.queue_id;
