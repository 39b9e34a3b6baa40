-- Purpose: what workers did, and how long that took, by hour.
-- Inputs: the hour before the first. Returns: WorkerHour and Measure tuples, oldest first.

-- name: hours
SELECT w.hour, q.type, w.worker, sum(w.completed)::bigint, sum(w.failed)::bigint, sum(w.retried)::bigint, sum(w.execution_ms)::bigint, sum(w.wait_ms)::bigint
FROM (SELECT hour, queue_id, worker, completed, failed, retried, execution_ms, wait_ms FROM {schema}.work_hour
  UNION ALL SELECT hour, queue_id, worker, completed, failed, retried, execution_ms, wait_ms FROM {schema}.work_delta) w
JOIN {schema}.queue q ON q.id = w.queue_id WHERE w.hour > $1 GROUP BY 1, 2, 3 ORDER BY 1, 2, 3;

-- name: measures
-- Deltas are summed before they are named: there may be many, of few kinds.
WITH d AS MATERIALIZED (
  SELECT hour, queue_id, execution, wait, sort, sum(jobs) AS jobs FROM {schema}.measure_delta WHERE hour > $1 GROUP BY 1, 2, 3, 4, 5)
SELECT m.hour, q.type, m.what, sum(m.jobs)::bigint
FROM (SELECT hour, queue_id, what, jobs FROM {schema}.measure_hour WHERE hour > $1
  UNION ALL SELECT d.hour, d.queue_id, n.what, d.jobs FROM d CROSS JOIN LATERAL unnest({schema}.measures_of(d.execution, d.wait, d.sort)) AS n(what)) m
JOIN {schema}.queue q ON q.id = m.queue_id GROUP BY 1, 2, 3 ORDER BY 1, 2, 3;
