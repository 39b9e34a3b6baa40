-- Purpose: find the oldest due job, seeking from one lane and priority to the next instead of reading every job.
-- Inputs: a queue, the lane and urgency to continue after, instants. Returns: see each statement.

-- name: queues
-- ?1: the state "pending". Queues without pending jobs cost nothing, however many there are.
SELECT q.id, q.type, q.grp FROM (
  SELECT queue FROM (
    SELECT queue, jobs FROM ew_tally WHERE state = ?1
    UNION ALL
    SELECT queue, jobs FROM ew_delta WHERE state = ?1)
  GROUP BY queue HAVING sum(jobs) <> 0) c CROSS JOIN ew_queue q ON q.id = c.queue
WHERE q.dropped = 0 ORDER BY q.type, q.grp;

-- name: first_ready
SELECT lane, urgency, run_at_ms FROM ew_ready WHERE queue = ? ORDER BY lane, urgency, run_at_ms LIMIT 1;

-- name: next_ready
-- The first job of the next priority, in the same lane or the next. The last number is greater than any timestamp;
-- without it, SQLite would seek to the first job of this priority and scan the others.
SELECT lane, urgency, run_at_ms FROM ew_ready WHERE queue = ? AND (lane, urgency, run_at_ms) > (?, ?, ?)
ORDER BY lane, urgency, run_at_ms LIMIT 1;

-- name: due
-- Jobs that are due but not yet promoted.
SELECT run_at_ms FROM ew_future WHERE queue = ? AND run_at_ms <= ? ORDER BY run_at_ms LIMIT 1;
