-- Purpose: read hourly counts of ended attempts.
-- Inputs: the hour before the first, the last hour, a type. Returns: Measure tuples, oldest first.

-- name: of_all
SELECT m.hour, q.type, m.what, sum(m.jobs)
FROM ew_measure m JOIN ew_queue q ON q.id = m.queue
WHERE m.hour > ? AND m.hour <= ?
GROUP BY m.hour, q.type, m.what
ORDER BY m.hour, q.type, m.what;

-- name: of_type
-- Seeks from hour to hour, without reading other types.
WITH RECURSIVE h (hour) AS (
  SELECT min(hour) FROM ew_measure WHERE hour > ?1 AND hour <= ?2
  UNION ALL
  SELECT (SELECT min(m.hour) FROM ew_measure m WHERE m.hour > h.hour AND m.hour <= ?2)
  FROM h WHERE h.hour IS NOT NULL)
SELECT m.hour, q.type, m.what, sum(m.jobs)
FROM h CROSS JOIN ew_queue q CROSS JOIN ew_measure m
WHERE q.type = ?3 AND m.hour = h.hour AND m.queue = q.id
GROUP BY m.hour, q.type, m.what
ORDER BY m.hour, q.type, m.what;
