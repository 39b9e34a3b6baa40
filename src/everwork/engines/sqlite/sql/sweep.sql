-- Purpose: what one step of upkeep looks for and does.
-- Inputs: instants and bounds. Returns: candidates; the writing is done by settle, change and shared.

-- name: lapsed
SELECT key, attempt, worker FROM ew_leased WHERE lease_until_ms <= ? LIMIT ?;

-- name: has_expired
SELECT EXISTS (SELECT 1 FROM ew_expiry WHERE expires_at_ms <= ?);

-- name: stranded
-- Pending jobs of groups that were dropped: nobody will ever ask for them.
SELECT r.key FROM ew_queue q CROSS JOIN ew_ready r ON r.queue = q.id WHERE q.dropped = 1
UNION ALL SELECT u.key FROM ew_queue q CROSS JOIN ew_future u ON u.queue = q.id WHERE q.dropped = 1 LIMIT ?;

-- name: finished
SELECT queue, state, key, finished_at_ms FROM ew_finished WHERE (queue, state, key) > (?, ?, ?)
ORDER BY queue, state, key LIMIT ?;

-- name: deltas
SELECT count(*) FROM (SELECT 1 FROM ew_delta LIMIT 1000);

-- name: fold
INSERT INTO ew_tally (queue, tenant, state, jobs) SELECT queue, tenant, state, sum(jobs) FROM ew_delta WHERE true GROUP BY 1, 2, 3
ON CONFLICT DO UPDATE SET jobs = jobs + excluded.jobs;

-- name: forget_deltas
DELETE FROM ew_delta;

-- name: forget_zeros
DELETE FROM ew_tally WHERE jobs = 0;

-- name: forget_hours
DELETE FROM ew_hourly WHERE hour < ?;

-- name: forget_lanes
-- A closed lane has no ready work: its row only remembers when it was served last.
DELETE FROM ew_lane WHERE open = 0 AND busy = 0 AND served < (SELECT turn - 100000 FROM ew_queue q WHERE q.id = queue);

-- name: forget_registered
DELETE FROM ew_registry WHERE until_ms <= ?;
