-- Purpose: recount the running jobs of queues with limits, and open the lanes that workers may claim from.
-- Inputs: queues and their limits. Returns: queues whose stored counts are wrong.

-- name: miscounted
-- A lane without a limit key has no count. An open lane without work is not an error: the next claim closes it.
WITH RECURSIVE
limited AS MATERIALIZED (
  SELECT q.id, q.solo, q.fair, q.running, t.name, t.max_running AS most, t.lane_max_running AS lane_most
  FROM ew_type t CROSS JOIN ew_queue q ON q.type = t.name
  WHERE COALESCE(t.max_running, t.lane_max_running) IS NOT NULL),
leased AS MATERIALIZED (
  SELECT queue, lane, count(*) AS jobs, lane <> '' AND substr(lane, -1) <> char(31) AS is_counted
  FROM ew_leased WHERE queue IN (SELECT id FROM limited) GROUP BY queue, lane),
totals AS MATERIALIZED (SELECT queue, sum(jobs) AS jobs FROM leased GROUP BY queue),
ready AS (
  SELECT m.id AS queue, (SELECT min(r.lane) FROM ew_ready r WHERE r.queue = m.id) AS lane
  FROM limited m WHERE lane_most IS NOT NULL
  UNION ALL
  SELECT queue, (SELECT min(r.lane) FROM ew_ready r WHERE r.queue = ready.queue AND r.lane > ready.lane)
  FROM ready WHERE lane IS NOT NULL),
wrong AS (
  SELECT m.id FROM limited m LEFT JOIN totals l ON l.queue = m.id
  WHERE m.most IS NOT NULL AND m.running <> COALESCE(l.jobs, 0)
  UNION ALL
  SELECT id FROM limited WHERE lane_most IS NOT NULL AND fair = 0
  UNION ALL
  SELECT m.id FROM limited m CROSS JOIN ew_lane n ON n.queue = m.id
  LEFT JOIN leased l ON l.queue = n.queue AND l.lane = n.lane AND l.is_counted
  WHERE m.lane_most IS NOT NULL AND (n.busy <> COALESCE(l.jobs, 0)
    OR (n.open = 1 AND n.busy >= m.lane_most)
    OR (n.open = 0 AND n.busy < m.lane_most
      AND EXISTS (SELECT 1 FROM ew_ready r WHERE r.queue = n.queue AND r.lane = n.lane)))
  UNION ALL
  SELECT m.id FROM leased l JOIN limited m ON m.id = l.queue
  WHERE m.lane_most IS NOT NULL AND l.is_counted
    AND NOT EXISTS (SELECT 1 FROM ew_lane n WHERE n.queue = l.queue AND n.lane = l.lane)
  UNION ALL
  SELECT queue FROM ready
  WHERE lane IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM ew_lane n WHERE n.queue = ready.queue AND n.lane = ready.lane))
SELECT id, solo, name, most, lane_most FROM limited WHERE id IN (SELECT id FROM wrong);

-- name: name_lanes
-- Every lane with ready work gets a row; seeks from lane to lane instead of reading every job.
WITH RECURSIVE ready AS (
  SELECT min(lane) AS lane FROM ew_ready WHERE queue = ?1
  UNION ALL
  SELECT (SELECT min(r.lane) FROM ew_ready r WHERE r.queue = ?1 AND r.lane > ready.lane)
  FROM ready WHERE lane IS NOT NULL)
INSERT INTO ew_lane (queue, lane, open)
SELECT ?1, lane, 0 FROM ready WHERE lane IS NOT NULL
ON CONFLICT DO NOTHING;

-- name: count_running
UPDATE ew_queue
SET running = CASE WHEN ?2 THEN (SELECT count(*) FROM ew_leased l WHERE l.queue = ?1) ELSE 0 END
WHERE id = ?1;

-- name: forget_busy
UPDATE ew_lane SET busy = 0 WHERE queue = ? AND busy <> 0;

-- name: leased_lanes
SELECT lane, count(*) FROM ew_leased WHERE queue = ? GROUP BY lane;

-- name: count_busy
INSERT INTO ew_lane (queue, lane, open, busy) VALUES (?1, ?2, 0, ?3) ON CONFLICT DO UPDATE SET busy = ?3;

-- name: open_lanes
-- ?2: how many jobs may run in a lane.
UPDATE ew_lane SET open = 1 - open WHERE queue = ?1 AND open <> (busy < ?2
  AND EXISTS (SELECT 1 FROM ew_ready r WHERE r.queue = ew_lane.queue AND r.lane = ew_lane.lane));
