-- Purpose: find the keys of jobs that may match a filter, newest first or in another order.
-- Inputs: queue, cursor (keys below it, or an instant and a key), limit. Returns: keys, with their times unless the
--   order is newest first; get.sql then reads the jobs, and Python code applies the filter.

-- name: all
SELECT key FROM ew_job WHERE key < ? ORDER BY key DESC LIMIT ?;

-- name: correlated
SELECT key FROM ew_job WHERE correlation_id = ? AND key < ? ORDER BY key DESC LIMIT ?;

-- name: deduped
-- ?1: pairs of type and tenant, as JSON; ?2: the dedupe key.
SELECT d.key FROM json_each(?1) p
CROSS JOIN ew_dedupe d ON d.type = json_extract(p.value, '$[0]') AND d.tenant = json_extract(p.value, '$[1]')
  AND d.dedupe_key = ?2;

-- name: pending
-- ?4: the latest run_at; ?5: the lowest attempt number.
SELECT key FROM (
  SELECT key FROM ew_ready WHERE queue = ?1 AND key < ?2 AND attempt >= ?5
  UNION ALL
  SELECT key FROM ew_future WHERE queue = ?1 AND key < ?2 AND run_at_ms <= ?4 AND attempt >= ?5)
ORDER BY key DESC LIMIT ?3;

-- name: processing
SELECT key FROM ew_leased WHERE queue = ? AND key < ? ORDER BY key DESC LIMIT ?;

-- name: finished
SELECT key FROM ew_finished WHERE queue = ?1 AND state = ?4 AND key < ?2 ORDER BY key DESC LIMIT ?3;

-- name: latest
SELECT finished_at_ms, key FROM ew_finished WHERE queue = ?1 AND state = 4 AND (finished_at_ms, key) < (?2, ?3)
ORDER BY finished_at_ms DESC, key DESC LIMIT ?4;

-- name: scheduled
-- ?5: the latest run_at; ?6: the lowest attempt number.
SELECT run_at_ms, key FROM ew_future
WHERE queue = ?1 AND (run_at_ms, key) > (?2, ?3) AND run_at_ms <= ?5 AND attempt >= ?6
ORDER BY run_at_ms, key LIMIT ?4;

-- name: ready_range
-- ?7: the lowest attempt number.
SELECT run_at_ms, key FROM ew_ready
WHERE queue = ?1 AND lane = ?2 AND urgency = ?3 AND (run_at_ms, key) > (?4, ?5) AND attempt >= ?7
ORDER BY run_at_ms, key LIMIT ?6;

-- name: ready
SELECT run_at_ms, key FROM ew_ready WHERE queue = ?1 AND (run_at_ms, key) > (?2, ?3) AND attempt >= ?5
ORDER BY run_at_ms, key LIMIT ?4;

-- name: queues
-- The states in which each queue has jobs. Queues without jobs cost nothing, however many there are.
SELECT q.id, q.grp, c.state FROM (
  SELECT queue, state FROM (
    SELECT queue, state, jobs FROM ew_tally UNION ALL SELECT queue, state, jobs FROM ew_delta)
  GROUP BY queue, state HAVING sum(jobs) <> 0) c CROSS JOIN ew_queue q ON q.id = c.queue;

-- name: queues_processing
-- The queues with leased jobs. Reading the counts takes longer: they are folded only by sweeps.
SELECT q.id, q.grp, ? FROM (SELECT DISTINCT queue FROM ew_leased) l CROSS JOIN ew_queue q ON q.id = l.queue;

-- name: queues_of
-- The queues of one type. They are few, while their counts are by tenant.
SELECT id, grp FROM ew_queue WHERE type = ?;

-- name: of_job
-- The keys among ?1 (JSON) whose jobs have one of the tenants (?2, JSON), the correlation id (?3) and the dedupe key
-- (?4), and were created at or after ?5 and before ?6. ?7: the default tenant.
SELECT j.key FROM json_each(?1) k
CROSS JOIN ew_job j ON j.key = k.value
WHERE (?3 IS NULL OR j.correlation_id = ?3) AND (?4 IS NULL OR j.dedupe_key = ?4)
  AND j.created_at_ms >= ?5 AND j.created_at_ms < ?6
  AND (?2 IS NULL
    OR CASE j.lane WHEN '' THEN ?7 ELSE substr(j.lane, 1, instr(j.lane, char(31)) - 1) END
      IN (SELECT value FROM json_each(?2)));

-- name: of_variables
-- For each key (?1, JSON): the size of the variables in bytes, and whether they contain the text (?2).
SELECT j.key, length(CAST(j.variables AS BLOB)), instr(j.variables, ?2) > 0 FROM json_each(?1) k
CROSS JOIN ew_job j ON j.key = k.value;

-- name: of_attempt
SELECT j.key, COALESCE(f.worker, l.worker),
  CASE WHEN f.key IS NOT NULL THEN f.error ELSE (
    SELECT CASE h.kind WHEN 'requeue' THEN NULL ELSE h.error END
    FROM ew_history h WHERE h.key = j.key AND h.kind <> 'release'
    ORDER BY h.attempt DESC, h.step DESC LIMIT 1) END
FROM json_each(?1) k
CROSS JOIN ew_job j ON j.key = k.value
LEFT JOIN ew_finished f ON f.queue = j.queue AND f.state IN (3, 4, 5) AND f.key = j.key
LEFT JOIN ew_leased l ON f.key IS NULL AND l.key = j.key;
