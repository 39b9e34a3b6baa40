-- Purpose: read hourly worker statistics.
-- Inputs: the hour before the first. Returns: WorkerHour tuples, oldest first.

-- name: hours
SELECT h.hour, q.type, h.worker, sum(h.completed), sum(h.failed), sum(h.retried), sum(h.execution_ms), sum(h.wait_ms)
FROM ew_hourly h JOIN ew_queue q ON q.id = h.queue
WHERE h.hour > ?
GROUP BY h.hour, q.type, h.worker
ORDER BY h.hour, q.type, h.worker;
