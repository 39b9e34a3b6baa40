-- Purpose: read hourly counts and durations of finished attempts.
-- Inputs: the hour before the first, the last hour, the queues (NULL: all). Returns: Measure tuples, oldest first.

-- name: queues
SELECT id FROM {schema}.queue WHERE type = $1;

-- name: measures
-- Deltas are summed before names are joined: there can be many rows with few distinct names.
WITH d AS MATERIALIZED (
  SELECT hour, queue_id, execution, wait, sort, sum(jobs) AS jobs FROM {schema}.measure_delta
  WHERE hour > $1 AND hour <= $2 AND ($3::int[] IS NULL OR queue_id = ANY($3)) GROUP BY 1, 2, 3, 4, 5)
SELECT m.hour, q.type, m.what, sum(m.jobs)::bigint
FROM (SELECT hour, queue_id, what, jobs FROM {schema}.measure_hour
  WHERE hour > $1 AND hour <= $2 AND ($3::int[] IS NULL OR queue_id = ANY($3))
  UNION ALL SELECT d.hour, d.queue_id, n.what, d.jobs FROM d
    CROSS JOIN LATERAL unnest({schema}.measures_of(d.execution, d.wait, d.sort)) AS n(what)) m
JOIN {schema}.queue q ON q.id = m.queue_id GROUP BY 1, 2, 3 HAVING sum(m.jobs) <> 0 ORDER BY 1, 2, 3;
