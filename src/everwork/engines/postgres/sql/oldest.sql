-- Purpose: find when the longest-waiting due job of each type and group became due.
-- Inputs: now, the maximum number of lanes and priorities to read per queue. Returns: Oldest tuples.

-- name: oldest
-- The first job of a lane and priority has waited longest, so one index probe for each is enough.
WITH RECURSIVE head AS (
  SELECT q.id, h.lane_id, h.rank, h.run_at_ms, 1 AS looks FROM {schema}.queue q CROSS JOIN LATERAL (
    SELECT j.lane_id, j.rank, j.run_at_ms FROM {schema}.live j WHERE j.state = 1 AND j.queue_id = q.id
    ORDER BY j.lane_id, j.rank, j.run_at_ms, j.key LIMIT 1) h
  UNION ALL
  SELECT b.id, h.lane_id, h.rank, h.run_at_ms, b.looks + 1 FROM head b CROSS JOIN LATERAL (
    SELECT j.lane_id, j.rank, j.run_at_ms FROM {schema}.live j
    WHERE j.state = 1 AND j.queue_id = b.id AND (j.lane_id, j.rank) > (b.lane_id, b.rank)
    ORDER BY j.lane_id, j.rank, j.run_at_ms, j.key LIMIT 1) h
  WHERE b.looks < $2),
due AS (
  SELECT q.id, h.run_at_ms FROM {schema}.queue q CROSS JOIN LATERAL (
    SELECT j.run_at_ms FROM {schema}.live j WHERE j.state = 0 AND j.queue_id = q.id
    ORDER BY j.run_at_ms, j.key LIMIT 1) h)
SELECT q.type, q.grp, min(w.run_at_ms) FROM (SELECT id, run_at_ms FROM head UNION ALL SELECT id, run_at_ms FROM due) w
JOIN {schema}.queue q ON q.id = w.id WHERE NOT q.dropped AND w.run_at_ms <= {schema}.now_ms($1) GROUP BY 1, 2
ORDER BY 1, 2;
