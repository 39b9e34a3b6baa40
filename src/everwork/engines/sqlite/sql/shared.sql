-- Purpose: statements shared by several operations: types, queues, limits, breakers, lanes, counts, statistics, rows.
-- Inputs and returns: see each statement.

-- name: take_write_lock
-- Changes nothing. As the first statement of a transaction, it waits for the write lock, like BEGIN IMMEDIATE.
UPDATE ew_seq SET last = last WHERE 0;

-- name: read_type
SELECT policy FROM ew_type WHERE name = ?;

-- name: make_type
INSERT INTO ew_type (name) VALUES (?) ON CONFLICT DO NOTHING;

-- name: make_queue
-- The lanes of a queue take turns if they have a limit.
INSERT INTO ew_queue (type, grp, fair)
SELECT name, ?2, lane_max_running IS NOT NULL FROM ew_type WHERE name = ?1
ON CONFLICT DO UPDATE SET dropped = 0;

-- name: read_queues
SELECT id, grp FROM ew_queue WHERE type = ? AND dropped = 0 ORDER BY grp;

-- name: read_queue
SELECT solo, fair FROM ew_queue WHERE id = ?;

-- name: set_solo
UPDATE ew_queue SET solo = ? WHERE id = ?;

-- name: set_fair
-- Turn 1 is reserved for the lane that was the only one: see `had_turn`.
UPDATE ew_queue SET fair = 1, turn = max(turn, 2) WHERE id = ?;

-- name: had_turn
UPDATE ew_lane SET served = 1 WHERE queue = ?1 AND lane = ?2
  AND EXISTS (SELECT 1 FROM ew_finished f WHERE f.queue = ?1 AND f.state IN (3, 4));

-- name: open_lane
-- Writes nothing if the lane is already open or at its limit. The least recently served lane comes first.
INSERT INTO ew_lane (queue, lane) VALUES (?, ?)
ON CONFLICT DO UPDATE SET open = 1 WHERE open = 0 AND (busy = 0 OR busy < (
  SELECT t.lane_max_running FROM ew_queue q CROSS JOIN ew_type t ON t.name = q.type WHERE q.id = ew_lane.queue));

-- name: append_delta
INSERT INTO ew_delta (queue, tenant, state, jobs) VALUES (?, ?, ?, ?);

-- name: add_hourly
-- ?9: the maximum number of rows per hour; ?10: the name under which further workers are counted. The rows are counted
-- only for a new worker.
INSERT INTO ew_hourly (hour, queue, worker, completed, failed, retried, execution_ms, wait_ms)
SELECT ?1, ?2, CASE
  WHEN EXISTS (SELECT 1 FROM ew_hourly h WHERE h.hour = ?1 AND h.queue = ?2 AND h.worker = ?3)
    OR (SELECT count(*) FROM (SELECT 1 FROM ew_hourly h WHERE h.hour = ?1 LIMIT ?9)) < ?9 THEN ?3 ELSE ?10 END,
  ?4, ?5, ?6, ?7, ?8 WHERE true
ON CONFLICT DO UPDATE SET completed = completed + excluded.completed, failed = failed + excluded.failed,
  retried = retried + excluded.retried, execution_ms = execution_ms + excluded.execution_ms,
  wait_ms = wait_ms + excluded.wait_ms;

-- name: add_measure
INSERT INTO ew_measure (hour, queue, what, jobs) VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET jobs = jobs + excluded.jobs;

-- name: insert_ready
INSERT INTO ew_ready (queue, lane, urgency, run_at_ms, key, attempt, attempts, max_attempts)
VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: insert_future
INSERT INTO ew_future (queue, lane, urgency, run_at_ms, key, attempt, attempts, max_attempts)
VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: revise
INSERT INTO ew_revision (key, run_at_ms, priority) VALUES (?, ?, ?)
ON CONFLICT DO UPDATE SET run_at_ms = excluded.run_at_ms, priority = excluded.priority;

-- name: set_variables
UPDATE ew_job SET variables = ? WHERE key = ?;

-- name: rearm_expiry
-- A job that is pending again can expire again.
INSERT INTO ew_expiry (expires_at_ms, key) SELECT expires_at_ms, key FROM ew_job
WHERE key = ? AND expires_at_ms IS NOT NULL ON CONFLICT DO NOTHING;

-- name: delete_ready
DELETE FROM ew_ready WHERE queue = ? AND lane = ? AND urgency = ? AND run_at_ms = ? AND key = ?;

-- name: delete_future
DELETE FROM ew_future WHERE queue = ? AND run_at_ms = ? AND key = ?;

-- name: delete_leased
DELETE FROM ew_leased WHERE key = ?;

-- name: insert_finished
INSERT INTO ew_finished (key, queue, state, attempt, attempts, max_attempts,
  finished_at_ms, activated_at_ms, worker, kind, error, code)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: delete_finished
DELETE FROM ew_finished WHERE queue = ? AND state = ? AND key = ?;

-- name: append_history
INSERT INTO ew_history (key, attempt, step, kind, at_ms, worker, error, activated_at_ms, retry_at_ms,
  traceback, due_at_ms, attempts)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: trim_history
DELETE FROM ew_history WHERE key = ? AND attempt <= ?;

-- name: held
SELECT t.name, t.max_running, t.lane_max_running, t.breaker_max, t.breaker_open_ms,
  t.breaker_failures, t.breaker_open_until_ms, t.breaker_probe_key, t.breaker_probe_attempt
FROM ew_queue q CROSS JOIN ew_type t ON t.name = q.type WHERE q.id = ?;

-- name: write_breaker
UPDATE ew_type
SET breaker_failures = ?, breaker_open_until_ms = ?, breaker_probe_key = ?, breaker_probe_attempt = ?
WHERE name = ?;

-- name: add_running
UPDATE ew_queue SET running = running + ? WHERE id = ? RETURNING running;

-- name: open_freed
-- ?3: the change in the lane's number of running jobs; ?4: the lane's limit.
UPDATE ew_lane SET open = 1 WHERE queue = ?1 AND lane = ?2 AND open = 0 AND busy + ?3 < ?4
  AND EXISTS (SELECT 1 FROM ew_ready r WHERE r.queue = ?1 AND r.lane = ?2);

-- name: less_busy
-- Does not open or close the lane, so its index is not written.
UPDATE ew_lane SET busy = busy + ?3 WHERE queue = ?1 AND lane = ?2;

-- name: more_busy
-- ?4: the lane's limit. A lane that reaches its limit is closed.
INSERT INTO ew_lane (queue, lane, open, busy) VALUES (?1, ?2, 0, ?3)
ON CONFLICT DO UPDATE SET busy = busy + ?3, open = open = 1 AND busy + ?3 < ?4;

-- name: breaker
SELECT breaker_failures, breaker_open_until_ms, breaker_probe_key, breaker_probe_attempt FROM ew_type WHERE name = ?;

-- name: probe
SELECT EXISTS (SELECT 1 FROM ew_leased WHERE key = ? AND attempt = ?);
