-- Purpose: manage types and their policies, groups, registry entries (with or without an expiry) and turns.
-- Inputs and returns: see each statement.

-- name: pause
UPDATE ew_type SET paused = ? WHERE name = ?;

-- name: set_policy
UPDATE ew_type
SET policy = ?2, breaker_max = ?3, breaker_open_ms = ?4, max_running = ?5, lane_max_running = ?6,
  rate_jobs = ?7, rate_ms = ?8, back_ms = ?9, back_rounds = ?10, keep_completed_ms = ?11, keep_failed_ms = ?12
WHERE name = ?1;

-- name: queues_of
SELECT id, solo FROM ew_queue WHERE type = ?;

-- name: limits
SELECT max_running, lane_max_running, back_ms, back_rounds FROM ew_type WHERE name = ?;

-- name: look_back
-- The new policy may requeue dead letters that the old one kept.
UPDATE ew_queue SET back_at_ms = 0, back_key = 0 WHERE type = ?;

-- name: drop_queue
-- The row is kept for its finished jobs; no new jobs are created for it.
UPDATE ew_queue SET dropped = 1 WHERE id = ?;

-- name: read_group
SELECT id FROM ew_queue WHERE type = ? AND grp = ? AND dropped = 0;

-- name: pending_of
SELECT key FROM ew_ready WHERE queue = ?1 UNION ALL SELECT key FROM ew_future WHERE queue = ?1;

-- name: types
SELECT t.name, t.paused, t.policy,
  (SELECT json_group_array(grp) FROM ew_queue q WHERE q.type = t.name AND q.grp <> '' AND q.dropped = 0),
  (SELECT max(asked_at_ms) FROM ew_queue q WHERE q.type = t.name),
  (SELECT max(rate_since_ms + t.rate_ms) FROM ew_queue q
   WHERE q.type = t.name AND q.rate_taken >= t.rate_jobs AND abs(?1 - q.rate_since_ms) < t.rate_ms),
  t.breaker_failures, t.breaker_open_until_ms, t.breaker_probe_key, t.breaker_probe_attempt
FROM ew_type t ORDER BY t.name;

-- name: register
INSERT INTO ew_registry (kind, name, body, until_ms) VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET body = excluded.body, until_ms = excluded.until_ms;

-- name: unregister
DELETE FROM ew_registry WHERE kind = ?1 AND name = ?2 AND COALESCE(until_ms > ?3, 1);

-- name: registered
SELECT kind, name, body, until_ms FROM ew_registry
WHERE kind = ?1 AND COALESCE(until_ms > ?2, 1) ORDER BY name;

-- name: last_registered
SELECT kind, name, body, until_ms FROM ew_registry
WHERE kind = ?1 AND name < ?2 AND COALESCE(until_ms > ?3, 1)
ORDER BY name DESC LIMIT ?4;

-- name: all_registered
SELECT kind, name, body, until_ms FROM ew_registry
WHERE kind <> '#turn' AND COALESCE(until_ms > ?1, 1) ORDER BY kind, name;

-- name: take_turn
INSERT INTO ew_registry (kind, name, body, until_ms) VALUES ('#turn', ?1, ?2, ?4)
ON CONFLICT DO UPDATE SET body = ?2, until_ms = ?4 WHERE body = ?2 OR until_ms <= ?3;

-- name: holder
SELECT body, until_ms FROM ew_registry WHERE kind = '#turn' AND name = ?;

-- name: owner
SELECT body FROM ew_registry WHERE kind = 'owner' AND name = ?;

-- name: own
INSERT INTO ew_registry (kind, name, body) VALUES ('owner', ?, ?);

-- name: marks
SELECT name, body FROM ew_registry WHERE kind = 'trigger-mark' AND name IN (SELECT value FROM json_each(?));
