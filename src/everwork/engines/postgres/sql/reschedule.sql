-- Purpose: change the time at which pending jobs run.
-- Inputs: sorted keys, instant (NULL: now), delay, now. Returns: the changed jobs, as they were before.

-- name: reschedule
WITH moved AS (
  UPDATE {schema}.live l SET run_at_ms = coalesce($2, {schema}.now_ms($4)) + $3,
    state = CASE WHEN coalesce($2, {schema}.now_ms($4)) + $3 > {schema}.now_ms($4) THEN 0 ELSE 1 END
  WHERE l.key = ANY($1::bigint[]) AND l.state + 0 < 2 RETURNING l.*),
told AS (
  INSERT INTO {schema}.open_lane_delta (queue_id, lanes)
  SELECT g.queue_id, array_agg(DISTINCT g.lane_id) FROM moved g JOIN {schema}.queue q ON q.id = g.queue_id
  JOIN {schema}.type t ON t.name = q.type WHERE t.lane_max_running IS NOT NULL AND q.fair GROUP BY 1)
SELECT m.key, 1, m.attempts, m.max_attempts, q.type FROM moved m JOIN {schema}.queue q ON q.id = m.queue_id;
