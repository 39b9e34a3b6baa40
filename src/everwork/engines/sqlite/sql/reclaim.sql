-- Purpose: restore expired leases for which no other attempt has started, and undo what their expiry counted.
-- Inputs: key and attempt; or the hour and queue whose statistics include it. Returns: its history entry.

-- name: lapse
SELECT worker, activated_at_ms, at_ms, retry_at_ms, due_at_ms, attempts
FROM ew_history WHERE key = ? AND attempt = ? AND step = 0 AND kind = 'lapse';

-- name: forget_round
-- ?3: the note of an automatic requeue.
UPDATE ew_back SET rounds = rounds - 1 WHERE key = ?1
  AND EXISTS (SELECT 1 FROM ew_history WHERE key = ?1 AND attempt = ?2 AND step = 1 AND error = ?3);

-- name: forget_lapse
-- Also deletes the requeue that followed it.
DELETE FROM ew_history WHERE key = ? AND attempt = ?;

-- name: insert_leased
INSERT INTO ew_leased (key, queue, lane, urgency, run_at_ms, attempt, attempts, max_attempts,
  activated_at_ms, lease_until_ms, worker)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: less_hourly
UPDATE ew_hourly SET failed = failed - ?4, retried = retried - ?5, execution_ms = execution_ms - ?6,
  wait_ms = wait_ms - ?7
WHERE hour = ?1 AND queue = ?2 AND worker = ?3;

-- name: forget_hourly
DELETE FROM ew_hourly WHERE hour = ? AND queue = ? AND worker = ? AND completed + failed + retried = 0;

-- name: less_measure
UPDATE ew_measure SET jobs = jobs - 1 WHERE hour = ? AND queue = ? AND what = ?;

-- name: forget_measure
DELETE FROM ew_measure WHERE hour = ? AND queue = ? AND what = ? AND jobs = 0;
