-- Purpose: sum the hourly statistics over workers, of all types together or of one.
-- Inputs: the hour before the first, the last hour, the queues (NULL: all). Returns: hour, name, sum; or hour and five
--   sums.

-- name: measures
WITH d AS MATERIALIZED (
  SELECT hour, execution, wait, sort, sum(jobs) AS jobs FROM {schema}.measure_delta
  WHERE hour > $1 AND hour <= $2 AND ($3::int[] IS NULL OR queue_id = ANY($3)) GROUP BY 1, 2, 3, 4)
SELECT m.hour, m.what, sum(m.jobs)::bigint
FROM (SELECT hour, what, jobs FROM {schema}.measure_hour
  WHERE hour > $1 AND hour <= $2 AND ($3::int[] IS NULL OR queue_id = ANY($3))
  UNION ALL SELECT d.hour, n.what, d.jobs FROM d
    CROSS JOIN LATERAL unnest({schema}.measures_of(d.execution, d.wait, d.sort)) AS n(what)) m GROUP BY 1, 2;

-- name: work
SELECT w.hour, sum(w.completed)::bigint, sum(w.failed)::bigint, sum(w.retried)::bigint, sum(w.execution_ms)::bigint,
  sum(w.wait_ms)::bigint
FROM (SELECT hour, queue_id, completed, failed, retried, execution_ms, wait_ms FROM {schema}.work_hour
  UNION ALL SELECT hour, queue_id, completed, failed, retried, execution_ms, wait_ms FROM {schema}.work_delta) w
WHERE w.hour > $1 AND w.hour <= $2 AND ($3::int[] IS NULL OR w.queue_id = ANY($3)) GROUP BY 1;
