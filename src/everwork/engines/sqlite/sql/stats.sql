-- Purpose: what workers did and how attempts went, by hour.
-- Inputs: the hour before the first. Returns: WorkerHour tuples; Measure tuples; oldest first.

-- name: hours
SELECT h.hour, q.type, h.worker, sum(h.completed), sum(h.failed), sum(h.retried), sum(h.execution_ms), sum(h.wait_ms)
FROM ew_hourly h JOIN ew_queue q ON q.id = h.queue WHERE h.hour > ? GROUP BY h.hour, q.type, h.worker
ORDER BY h.hour, q.type, h.worker;

-- name: measures
SELECT m.hour, q.type, m.what, sum(m.jobs) FROM ew_measure m JOIN ew_queue q ON q.id = m.queue WHERE m.hour > ?
GROUP BY m.hour, q.type, m.what ORDER BY m.hour, q.type, m.what;
