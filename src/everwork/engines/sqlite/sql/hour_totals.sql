-- Purpose: sum the hourly statistics over workers, of all types together or of one.
-- Inputs: the hour before the first, the last hour, a type. Returns: hour, name, sum; or hour and five sums.

-- name: measures
SELECT hour, what, sum(jobs) FROM ew_measure WHERE hour > ? AND hour <= ? GROUP BY hour, what;

-- name: work
SELECT hour, sum(completed), sum(failed), sum(retried), sum(execution_ms), sum(wait_ms)
FROM ew_hourly WHERE hour > ? AND hour <= ? GROUP BY hour;

-- name: measures_of_type
-- Seeks from hour to hour, without reading other types.
WITH RECURSIVE h (hour) AS (
  SELECT min(hour) FROM ew_measure WHERE hour > ?1 AND hour <= ?2
  UNION ALL
  SELECT (SELECT min(m.hour) FROM ew_measure m WHERE m.hour > h.hour AND m.hour <= ?2)
  FROM h WHERE h.hour IS NOT NULL)
SELECT m.hour, m.what, sum(m.jobs) FROM h CROSS JOIN ew_queue q CROSS JOIN ew_measure m
WHERE q.type = ?3 AND m.hour = h.hour AND m.queue = q.id GROUP BY m.hour, m.what;

-- name: work_of_type
WITH RECURSIVE h (hour) AS (
  SELECT min(hour) FROM ew_hourly WHERE hour > ?1 AND hour <= ?2
  UNION ALL
  SELECT (SELECT min(w.hour) FROM ew_hourly w WHERE w.hour > h.hour AND w.hour <= ?2)
  FROM h WHERE h.hour IS NOT NULL)
SELECT w.hour, sum(w.completed), sum(w.failed), sum(w.retried), sum(w.execution_ms), sum(w.wait_ms)
FROM h CROSS JOIN ew_queue q CROSS JOIN ew_hourly w
WHERE q.type = ?3 AND w.hour = h.hour AND w.queue = q.id GROUP BY w.hour;
