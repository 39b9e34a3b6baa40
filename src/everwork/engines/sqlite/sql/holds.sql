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
