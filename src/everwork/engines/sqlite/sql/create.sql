-- Purpose: accept jobs, all or none.
-- Inputs: rows built from NewJob; now is the engine's time. Returns: keys; for a duplicate, the key of the first job
--   with the dedupe key.

-- name: take_keys
UPDATE ew_seq SET last = last + ? RETURNING last;

-- name: add_key
-- Together with `last_key`, this costs half as much as RETURNING.
UPDATE ew_seq SET last = last + 1;

-- name: last_key
SELECT last FROM ew_seq;

-- name: read_queues
-- The queues of a type, with what one plain job needs: its policy; whether nothing may hold a job back; the demand that
-- a worker has parked; whether other jobs are already ready or due (by ?2).
SELECT q.id, q.grp, q.solo, q.fair, q.turn, t.policy,
  NOT t.paused AND COALESCE(t.max_running, t.lane_max_running, t.rate_jobs, t.breaker_max, t.breaker_open_until_ms,
    NULLIF(t.breaker_failures, 0)) IS NULL,
  p.worker, p.lease_ms, p.socket, p.token,
  p.queue IS NOT NULL AND (EXISTS (SELECT 1 FROM ew_ready r WHERE r.queue = q.id)
    OR EXISTS (SELECT 1 FROM ew_future f WHERE f.queue = q.id AND f.run_at_ms <= ?2)
    OR EXISTS (SELECT 1 FROM ew_lane l INDEXED BY ew_lane_turn WHERE l.queue = q.id AND l.open = 1))
FROM ew_queue q CROSS JOIN ew_type t ON t.name = q.type LEFT JOIN ew_parked p ON p.queue = q.id
WHERE q.type = ?1 AND q.dropped = 0;

-- name: insert_leased
INSERT INTO ew_leased (key, queue, lane, urgency, run_at_ms, attempt, attempts, max_attempts,
  activated_at_ms, lease_until_ms, worker)
VALUES (?, ?, ?, ?, ?, 1, 1, ?, ?, ?, ?);

-- name: take_turn
-- The lane of a job that was leased while nothing else was ready: it was served, and has no more work.
INSERT INTO ew_lane (queue, lane, served, open) VALUES (?, ?, ?, 0)
ON CONFLICT DO UPDATE SET served = excluded.served, open = 0;

-- name: claim_dedupe
INSERT INTO ew_dedupe (type, tenant, dedupe_key, key) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING;

-- name: read_dedupe
SELECT key FROM ew_dedupe WHERE type = ? AND tenant = ? AND dedupe_key = ?;

-- name: insert_job
INSERT INTO ew_job (key, queue, lane, priority, run_at_ms, created_at_ms, max_attempts, variables, dedupe_key,
  correlation_id, expires_at_ms, timeout_ms, headers, retry, extra, copy_of)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: insert_plain_job
-- Most jobs leave the rare columns empty: inserting half the columns takes a third less time.
INSERT INTO ew_job (key, queue, lane, priority, run_at_ms, created_at_ms, max_attempts, variables)
VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: insert_ready
INSERT INTO ew_ready (queue, lane, urgency, run_at_ms, key, attempt, attempts, max_attempts)
VALUES (?, ?, ?, ?, ?, 0, 0, ?);

-- name: insert_future
INSERT INTO ew_future (queue, lane, urgency, run_at_ms, key, attempt, attempts, max_attempts)
VALUES (?, ?, ?, ?, ?, 0, 0, ?);

-- name: arm_expiry
INSERT INTO ew_expiry (expires_at_ms, key) VALUES (?, ?);

-- name: read_producer
SELECT number, keys FROM ew_producer WHERE id = ?;

-- name: advance_producer
UPDATE ew_producer SET number = ?1, keys = ?2, at_ms = ?3 WHERE id = ?4 AND number < ?1;

-- name: insert_producer
INSERT INTO ew_producer (id, number, keys, at_ms) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING;
