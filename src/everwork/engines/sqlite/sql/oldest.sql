-- Purpose: find since when work waits, from one lane and priority to the next, not from job to job.
-- Inputs: a queue, the lane and urgency to continue after, instants. Returns: see each statement.

-- name: queues
SELECT id, type, grp FROM ew_queue WHERE dropped = 0 ORDER BY type, grp;

-- name: first_ready
SELECT lane, urgency, run_at_ms FROM ew_ready WHERE queue = ? ORDER BY lane, urgency, run_at_ms LIMIT 1;

-- name: next_ready
-- The first job of the next priority, of the same lane or of another. The last number is higher than every instant:
-- without it, SQLite would seek the first job of this priority and walk over all the others.
SELECT lane, urgency, run_at_ms FROM ew_ready WHERE queue = ? AND (lane, urgency, run_at_ms) > (?, ?, ?)
ORDER BY lane, urgency, run_at_ms LIMIT 1;

-- name: due
-- Due, but not promoted yet.
SELECT run_at_ms FROM ew_future WHERE queue = ? AND run_at_ms <= ? ORDER BY run_at_ms LIMIT 1;
