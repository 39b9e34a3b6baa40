-- Purpose: one step of maintenance.
-- Inputs: instants and limits. Returns: candidates; settle.py, change.py and shared.py write the changes to them.

-- name: lapsed
SELECT key, attempt, worker FROM ew_leased WHERE lease_until_ms <= ? LIMIT ?;

-- name: has_expired
SELECT EXISTS (SELECT 1 FROM ew_expiry WHERE expires_at_ms <= ?);

-- name: stranded
-- Pending jobs of dropped groups: no worker will ever poll for them.
SELECT r.key FROM ew_queue q CROSS JOIN ew_ready r ON r.queue = q.id WHERE q.dropped = 1
UNION ALL
SELECT u.key FROM ew_queue q CROSS JOIN ew_future u ON u.queue = q.id WHERE q.dropped = 1 LIMIT ?;

-- name: finished
SELECT queue, state, key, finished_at_ms FROM ew_finished WHERE (queue, state, key) > (?, ?, ?)
ORDER BY queue, state, key LIMIT ?;

-- name: keeps
SELECT q.id, t.keep_completed_ms, t.keep_failed_ms
FROM ew_type t CROSS JOIN ew_queue q ON q.type = t.name
WHERE t.keep_completed_ms IS NOT NULL OR t.keep_failed_ms IS NOT NULL;

-- name: marks_back
SELECT q.id, t.back_ms, t.back_rounds, q.back_at_ms, q.back_key
FROM ew_type t CROSS JOIN ew_queue q ON q.type = t.name
WHERE t.back_ms IS NOT NULL AND q.dropped = 0;

-- name: dead
-- ?6: now. A job past its expiry is not requeued, because it would expire immediately.
SELECT f.finished_at_ms, f.key, f.kind, COALESCE(b.rounds, 0),
  COALESCE((SELECT j.expires_at_ms <= ?6 FROM ew_job j WHERE j.key = f.key), 0)
FROM ew_finished f INDEXED BY ew_failed
LEFT JOIN ew_back b ON b.key = f.key
WHERE f.queue = ?1 AND f.state = 4 AND (f.finished_at_ms, f.key) > (?2, ?3) AND f.finished_at_ms <= ?4
ORDER BY f.finished_at_ms, f.key LIMIT ?5;

-- name: looked_back
UPDATE ew_queue SET back_at_ms = ?, back_key = ? WHERE id = ?;

-- name: count_round
INSERT INTO ew_back (key, rounds) VALUES (?, 1) ON CONFLICT DO UPDATE SET rounds = rounds + 1;

-- name: deltas
SELECT count(*) FROM (SELECT 1 FROM ew_delta LIMIT 1000);

-- name: fold
INSERT INTO ew_tally (queue, tenant, state, jobs)
SELECT queue, tenant, state, sum(jobs) FROM ew_delta WHERE true GROUP BY 1, 2, 3
ON CONFLICT DO UPDATE SET jobs = jobs + excluded.jobs;

-- name: forget_deltas
DELETE FROM ew_delta;

-- name: forget_zeros
DELETE FROM ew_tally WHERE jobs = 0;

-- name: forget_hours
DELETE FROM ew_hourly WHERE hour < ?;

-- name: forget_measures
DELETE FROM ew_measure WHERE hour < ?;

-- name: forget_lanes
-- A closed lane has no ready work: its row only stores when it was last served.
DELETE FROM ew_lane
WHERE open = 0 AND busy = 0 AND served < (SELECT turn - 100000 FROM ew_queue q WHERE q.id = queue);

-- name: forget_producers
DELETE FROM ew_producer WHERE at_ms < ?;

-- name: forget_more_producers
-- ?1: how many producers to keep.
DELETE FROM ew_producer WHERE at_ms < (SELECT at_ms FROM ew_producer ORDER BY at_ms DESC LIMIT 1 OFFSET ?1 - 1);

-- name: forget_registered
DELETE FROM ew_registry WHERE until_ms <= ?;
