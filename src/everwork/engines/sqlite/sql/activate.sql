-- Purpose: promote due jobs and lease the first jobs of each lane in claim order (guarantee G9).
-- Inputs: type, group, limits, instants. Returns: the rows of leased jobs. urgency is the negated priority.

-- name: read_queue
SELECT q.id, q.solo, q.fair, q.turn, t.paused, q.asked_at_ms,
  COALESCE(t.breaker_open_until_ms, t.max_running, t.lane_max_running, t.rate_jobs) IS NOT NULL
FROM ew_queue q CROSS JOIN ew_type t ON t.name = q.type
WHERE q.type = ? AND q.grp = ? AND q.dropped = 0;

-- name: read_bounds
-- Runs only for queues with limits: few queues have them, and a claim must be fast.
SELECT t.max_running, t.lane_max_running, q.running, t.rate_jobs, t.rate_ms, q.rate_since_ms, q.rate_taken,
  t.breaker_failures, t.breaker_open_until_ms, t.breaker_probe_key, t.breaker_probe_attempt
FROM ew_queue q CROSS JOIN ew_type t ON t.name = q.type
WHERE q.id = ?;

-- name: has_ready
SELECT EXISTS (SELECT 1 FROM ew_ready WHERE queue = ?);

-- name: has_open
SELECT EXISTS (SELECT 1 FROM ew_lane INDEXED BY ew_lane_turn WHERE queue = ? AND open = 1);

-- name: next_future
SELECT run_at_ms FROM ew_future WHERE queue = ? ORDER BY run_at_ms LIMIT 1;

-- name: mark_asked
UPDATE ew_queue SET asked_at_ms = ? WHERE id = ?;

-- name: due
SELECT run_at_ms, key FROM ew_future WHERE queue = ? AND run_at_ms <= ? ORDER BY run_at_ms, key LIMIT ?;

-- name: due_lanes
SELECT DISTINCT lane FROM ew_future WHERE queue = ?1 AND (run_at_ms, key) <= (?2, ?3);

-- name: promote
INSERT INTO ew_ready (queue, lane, urgency, run_at_ms, key, attempt, attempts, max_attempts)
SELECT queue, lane, urgency, run_at_ms, key, attempt, attempts, max_attempts FROM ew_future
WHERE queue = ?1 AND (run_at_ms, key) <= (?2, ?3);

-- name: promoted
DELETE FROM ew_future WHERE queue = ?1 AND (run_at_ms, key) <= (?2, ?3);

-- name: turn
SELECT lane FROM ew_lane INDEXED BY ew_lane_turn
WHERE queue = ? AND open = 1 {tenants} ORDER BY served LIMIT ?;

-- name: limited_turn
SELECT lane, busy FROM ew_lane INDEXED BY ew_lane_turn
WHERE queue = ? AND open = 1 {tenants} ORDER BY served LIMIT ?;

-- name: pick
SELECT r.key, r.attempt + 1, r.attempts + 1, r.max_attempts, j.variables, j.headers, -r.urgency, r.run_at_ms,
  j.created_at_ms, j.timeout_ms, j.correlation_id, j.extra
FROM ew_ready r CROSS JOIN ew_job j ON j.key = r.key
WHERE r.queue = ? AND r.lane = ? ORDER BY r.urgency, r.run_at_ms, r.key LIMIT ?;

-- name: has_lanes
-- ?: one less than how many open lanes there must be.
SELECT 1 FROM ew_lane INDEXED BY ew_lane_turn WHERE queue = ? AND open = 1 {tenants} LIMIT 1 OFFSET ?;

-- name: pick_firsts
-- The first job of each lane whose turn it is; after the columns of `pick`, the lane, whether it has more, and how many
-- of its jobs are running. The key is null if the lane is empty or its first row is damaged: `pick` skips such rows.
SELECT j.key, r.attempt + 1, r.attempts + 1, r.max_attempts, j.variables, j.headers, -r.urgency, r.run_at_ms,
  j.created_at_ms, j.timeout_ms, j.correlation_id, j.extra, o.lane,
  EXISTS (SELECT 1 FROM ew_ready m WHERE m.queue = ?1 AND m.lane = o.lane LIMIT 1 OFFSET 1), o.busy
FROM (
  SELECT lane, {busy} AS busy FROM ew_lane INDEXED BY ew_lane_turn
  WHERE queue = ?1 AND open = 1 {tenants} ORDER BY served LIMIT ?) o
LEFT JOIN ew_ready r ON r.queue = ?1 AND r.lane = o.lane AND (r.urgency, r.run_at_ms, r.key) = (
  SELECT f.urgency, f.run_at_ms, f.key FROM ew_ready f WHERE f.queue = ?1 AND f.lane = o.lane
  ORDER BY f.urgency, f.run_at_ms, f.key LIMIT 1)
LEFT JOIN ew_job j ON j.key = r.key;

-- name: lease_firsts
INSERT INTO ew_leased (queue, activated_at_ms, lease_until_ms, worker,
  key, attempt, attempts, max_attempts, urgency, run_at_ms, lane)
VALUES (?1, ?2, ?3, ?4, ?, ?, ?, ?, ?, ?, ?);

-- name: taken_firsts
-- ?2: a JSON array of keys that are leased now.
DELETE FROM ew_ready WHERE queue = ?1 AND (lane, urgency, run_at_ms, key) IN (
  SELECT lane, urgency, run_at_ms, key FROM ew_leased WHERE key IN (SELECT value FROM json_each(?2)));

-- name: lease
INSERT INTO ew_leased (key, queue, lane, urgency, run_at_ms, attempt, attempts, max_attempts,
  activated_at_ms, lease_until_ms, worker)
SELECT key, queue, lane, urgency, run_at_ms, attempt + 1, attempts + 1, max_attempts, ?6, ?7, ?8
FROM ew_ready
WHERE queue = ?1 AND lane = ?2 AND (urgency, run_at_ms, key) <= (?3, ?4, ?5);

-- name: taken
DELETE FROM ew_ready WHERE queue = ?1 AND lane = ?2 AND (urgency, run_at_ms, key) <= (?3, ?4, ?5);

-- name: hand_on
UPDATE ew_leased SET worker = ?, lease_until_ms = ? WHERE key = ?;

-- name: mark_turn
-- The lanes already exist; this is an upsert because that can update many rows in one statement.
INSERT INTO ew_lane (queue, lane, served, open, busy) VALUES (?1, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET served = excluded.served, open = excluded.open, busy = busy + excluded.busy;

-- name: next_turn
UPDATE ew_queue SET turn = ? WHERE id = ?;

-- name: use_rate
UPDATE ew_queue SET rate_since_ms = ?, rate_taken = ? WHERE id = ?;

-- name: expired
SELECT expires_at_ms, key FROM ew_expiry WHERE expires_at_ms <= ? ORDER BY expires_at_ms, key LIMIT ?;

-- name: forget_expiry
DELETE FROM ew_expiry WHERE expires_at_ms = ? AND key = ?;
