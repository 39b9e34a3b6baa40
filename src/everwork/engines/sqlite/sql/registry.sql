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
SELECT name, paused, policy, rate_jobs, rate_ms, breaker_failures, breaker_open_until_ms, breaker_probe_key,
  breaker_probe_attempt FROM ew_type ORDER BY name;

-- name: queues
SELECT type, grp, dropped, asked_at_ms, rate_since_ms, rate_taken FROM ew_queue ORDER BY type, grp;

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

-- name: uses
-- is_set_up: the type is paused or has an open breaker, an additional group or an owner.
SELECT t.name, t.policy,
  t.paused OR t.breaker_open_until_ms IS NOT NULL
    OR EXISTS (SELECT 1 FROM ew_queue q WHERE q.type = t.name AND q.grp <> '' AND q.dropped = 0)
    OR EXISTS (SELECT 1 FROM ew_registry r WHERE r.kind = 'owner' AND r.name = t.name),
  (SELECT max(asked_at_ms) FROM ew_queue q WHERE q.type = t.name),
  (SELECT json_group_array(id) FROM ew_queue q WHERE q.type = t.name)
FROM ew_type t WHERE t.name IN (SELECT value FROM json_each(?));

-- name: queues_with_jobs
SELECT DISTINCT queue FROM (
  SELECT queue, tenant, state, jobs FROM ew_tally WHERE queue IN (SELECT value FROM json_each(?1))
  UNION ALL
  SELECT queue, tenant, state, jobs FROM ew_delta WHERE queue IN (SELECT value FROM json_each(?1)))
GROUP BY queue, tenant, state HAVING sum(jobs) <> 0;

-- name: queues_with_statistics
-- Seeks from hour to hour, because few queues are checked, and the table may be large.
WITH RECURSIVE hours AS (
  SELECT min(hour) AS hour FROM ew_hourly
  UNION ALL
  SELECT (SELECT min(h.hour) FROM ew_hourly h WHERE h.hour > hours.hour) FROM hours WHERE hour IS NOT NULL)
SELECT q.value FROM json_each(?) q
WHERE EXISTS (SELECT 1 FROM hours CROSS JOIN ew_hourly h ON h.hour = hours.hour AND h.queue = q.value);

-- name: delete_hourly
WITH RECURSIVE hours AS (
  SELECT min(hour) AS hour FROM ew_hourly
  UNION ALL
  SELECT (SELECT min(h.hour) FROM ew_hourly h WHERE h.hour > hours.hour) FROM hours WHERE hour IS NOT NULL)
DELETE FROM ew_hourly
WHERE hour IN (SELECT hour FROM hours) AND queue IN (SELECT value FROM json_each(?));

-- name: delete_measure
WITH RECURSIVE hours AS (
  SELECT min(hour) AS hour FROM ew_measure
  UNION ALL
  SELECT (SELECT min(m.hour) FROM ew_measure m WHERE m.hour > hours.hour) FROM hours WHERE hour IS NOT NULL)
DELETE FROM ew_measure
WHERE hour IN (SELECT hour FROM hours) AND queue IN (SELECT value FROM json_each(?));

-- name: delete_lane
DELETE FROM ew_lane WHERE queue IN (SELECT value FROM json_each(?));

-- name: delete_tally
DELETE FROM ew_tally WHERE queue IN (SELECT value FROM json_each(?));

-- name: delete_delta
DELETE FROM ew_delta WHERE queue IN (SELECT value FROM json_each(?));

-- name: delete_parked
DELETE FROM ew_parked WHERE queue IN (SELECT value FROM json_each(?));

-- name: delete_queue
DELETE FROM ew_queue WHERE id IN (SELECT value FROM json_each(?));

-- name: delete_owners
DELETE FROM ew_registry WHERE kind = 'owner' AND name IN (SELECT value FROM json_each(?));

-- name: delete_types
DELETE FROM ew_type WHERE name IN (SELECT value FROM json_each(?));
