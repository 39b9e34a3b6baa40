-- Purpose: the demands that workers have parked, at most one per queue: written, read, used and withdrawn.
-- Inputs: queue, worker, types as a JSON list. Returns: see each statement.

-- name: parked
SELECT worker, lease_ms, socket, token FROM ew_parked WHERE queue = ?;

-- name: park
INSERT OR REPLACE INTO ew_parked (queue, worker, lease_ms, socket, token) VALUES (?, ?, ?, ?, ?);

-- name: use
DELETE FROM ew_parked WHERE queue = ?;

-- name: withdraw
DELETE FROM ew_parked WHERE queue = ? AND worker = ?;

-- name: is_parked
SELECT EXISTS (
  SELECT 1 FROM json_each(?2) t
  CROSS JOIN ew_queue q ON q.type = t.value AND q.grp = ''
  CROSS JOIN ew_parked p ON p.queue = q.id AND p.worker = ?1);

-- name: unpark
DELETE FROM ew_parked WHERE worker = ?1 AND queue IN (
  SELECT q.id FROM json_each(?2) t CROSS JOIN ew_queue q ON q.type = t.value AND q.grp = '');
