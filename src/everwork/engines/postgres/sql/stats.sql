-- Purpose: read hourly worker statistics.
-- Inputs: the hour before the first. Returns: WorkerHour tuples, oldest first.

-- name: hours
SELECT w.hour, q.type, w.worker, sum(w.completed)::bigint, sum(w.failed)::bigint, sum(w.retried)::bigint,
  sum(w.execution_ms)::bigint, sum(w.wait_ms)::bigint
FROM (SELECT hour, queue_id, worker, completed, failed, retried, execution_ms, wait_ms FROM {schema}.work_hour
  UNION ALL SELECT hour, queue_id, worker, completed, failed, retried, execution_ms, wait_ms FROM {schema}.work_delta) w
JOIN {schema}.queue q ON q.id = w.queue_id WHERE w.hour > $1 GROUP BY 1, 2, 3
HAVING sum(w.completed) + sum(w.failed) + sum(w.retried) <> 0 ORDER BY 1, 2, 3;
