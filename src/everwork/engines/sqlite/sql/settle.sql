-- Purpose: end attempts. Completions need only the guard. Failures are read, decided by the core, and written.
-- Inputs: a JSON object {"key": attempt, ...} (attempt 0: not checked). Returns: the rows that passed the guard.

-- name: complete
INSERT INTO ew_finished (queue, state, key, attempt, attempts, max_attempts, finished_at_ms, activated_at_ms, worker)
SELECT l.queue, 3, l.key, l.attempt, l.attempts, l.max_attempts, ?2, l.activated_at_ms, l.worker
FROM json_each(?1) o
CROSS JOIN ew_leased l ON l.key = CAST(o.key AS INTEGER) AND (l.attempt = o.value OR o.value = 0);

-- name: completed_sums
-- Runs only after every key has passed the guard. Returns every lane, run time and wait: joining them as text costs no
-- more than summing them, and less than grouping by lane if there are many. The last column tells whether the type's
-- running jobs are counted or its breaker must see the success.
SELECT l.queue, json_group_array(l.lane), l.worker, count(*),
  group_concat(?2 - l.activated_at_ms), group_concat(l.activated_at_ms - l.run_at_ms),
  (SELECT COALESCE(t.max_running, t.lane_max_running, t.breaker_open_until_ms, NULLIF(t.breaker_failures, 0))
     IS NOT NULL
   FROM ew_queue q CROSS JOIN ew_type t ON t.name = q.type WHERE q.id = l.queue)
FROM json_each(?1) o
CROSS JOIN ew_leased l ON l.key = CAST(o.key AS INTEGER)
GROUP BY l.queue, l.worker;

-- name: completed_all
DELETE FROM ew_leased WHERE key IN (SELECT CAST(key AS INTEGER) FROM json_each(?1));

-- name: completed_some
DELETE FROM ew_leased WHERE key IN (
  SELECT l.key FROM json_each(?1) o
  CROSS JOIN ew_leased l ON l.key = CAST(o.key AS INTEGER) AND (l.attempt = o.value OR o.value = 0))
RETURNING key, queue, lane, worker, 1, CAST(?2 - activated_at_ms AS TEXT), CAST(activated_at_ms - run_at_ms AS TEXT), 1;

-- name: insert_result
INSERT INTO ew_result (key, body) VALUES (?, ?);

-- name: read_leased
SELECT l.key, l.queue, l.lane, l.urgency, l.run_at_ms, l.attempt, l.attempts, l.max_attempts,
  l.activated_at_ms, l.worker, j.retry, t.policy
FROM json_each(?1) o
CROSS JOIN ew_leased l ON l.key = CAST(o.key AS INTEGER) AND (l.attempt = o.value OR o.value = 0)
CROSS JOIN ew_job j ON j.key = l.key
CROSS JOIN ew_queue q ON q.id = l.queue
CROSS JOIN ew_type t ON t.name = q.type;

-- name: past_end
-- How an earlier attempt ended, if the history still has it.
SELECT kind FROM ew_history WHERE key = ? AND attempt = ? AND step = 0;
