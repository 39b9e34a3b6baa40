-- Purpose: end attempts. Completions and releases need only the guard. Failures are read, decided by the core, and
--   written if unchanged since the read, so that no lock is held across a round trip.
-- Inputs: keys and attempts. Returns: what the core needs for its decision. functions/complete.sql and
--   functions/settle.sql write; `step` in functions/activate.sql calls them.

-- name: read_leased
SELECT l.key, l.attempt, l.attempts, l.max_attempts, j.retry, t.policy
FROM {schema}.live l CROSS JOIN LATERAL (SELECT a.retry FROM {schema}.job a WHERE a.key = l.key LIMIT 1) j
JOIN {schema}.queue q ON q.id = l.queue_id JOIN {schema}.type t ON t.name = q.type
WHERE l.key = ANY($1::bigint[]) AND l.state + 0 = 2;

-- name: past_ends
-- How earlier attempts ended, if the history still has them.
SELECT h.key, h.attempt, h.kind FROM {schema}.history h WHERE h.key = ANY($1::bigint[]) AND h.step = 0;

-- name: report_repeated
-- Reports completions in users' own transactions to breakers. Inputs: {"keys", "now"}. Returns: whether one was closed.
SELECT {schema}.tell_repeated($1::jsonb);

-- name: free
-- Locks and returns the jobs that no other transaction has locked.
SELECT key FROM {schema}.live WHERE key = ANY($1::bigint[]) ORDER BY key FOR UPDATE SKIP LOCKED;
