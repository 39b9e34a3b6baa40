-- Purpose: what holds the jobs of a type back: its breaker, its limits, and how many run.
-- Inputs and returns: see each statement.

-- name: held
SELECT t.name, t.max_running, t.lane_max_running, t.breaker_max, t.breaker_open_ms,
  t.breaker_failures, t.breaker_open_until_ms, t.breaker_probe_key, t.breaker_probe_attempt
FROM ew_queue q CROSS JOIN ew_type t ON t.name = q.type WHERE q.id = ?;

-- name: write_breaker
UPDATE ew_type SET breaker_failures = ?, breaker_open_until_ms = ?, breaker_probe_key = ?, breaker_probe_attempt = ? WHERE name = ?;

-- name: add_running
UPDATE ew_queue SET running = running + ? WHERE id = ? RETURNING running;

-- name: add_busy
-- ?4: how many may run in the lane. It is open if it has room, and ready work.
INSERT INTO ew_lane (queue, lane, open, busy) VALUES (?1, ?2, 0, ?3) ON CONFLICT DO UPDATE SET busy = busy + ?3,
  open = busy + ?3 < ?4 AND (open = 1 OR EXISTS (SELECT 1 FROM ew_ready r WHERE r.queue = ?1 AND r.lane = ?2));

-- name: breaker
SELECT breaker_failures, breaker_open_until_ms, breaker_probe_key, breaker_probe_attempt FROM ew_type WHERE name = ?;

-- name: probe
SELECT EXISTS (SELECT 1 FROM ew_leased WHERE key = ? AND attempt = ?);

-- name: queues_of
SELECT id, solo FROM ew_queue WHERE type = ?;

-- name: limits
SELECT max_running, lane_max_running, back_ms, back_rounds FROM ew_type WHERE name = ?;

-- name: count_running
UPDATE ew_queue SET running = CASE WHEN ?2 THEN (SELECT count(*) FROM ew_leased l WHERE l.queue = ?1) ELSE 0 END WHERE id = ?1;

-- name: forget_busy
UPDATE ew_lane SET busy = 0 WHERE queue = ? AND busy <> 0;

-- name: leased_lanes
SELECT lane, count(*) FROM ew_leased WHERE queue = ? GROUP BY lane;

-- name: count_busy
INSERT INTO ew_lane (queue, lane, open, busy) VALUES (?1, ?2, 0, ?3) ON CONFLICT DO UPDATE SET busy = ?3;

-- name: open_lanes
-- ?2: how many may run in a lane.
UPDATE ew_lane SET open = 1 - open WHERE queue = ?1 AND open <> (busy < ?2
  AND EXISTS (SELECT 1 FROM ew_ready r WHERE r.queue = ew_lane.queue AND r.lane = ew_lane.lane));
