-- Purpose: take back leases that have lapsed, as long as no other attempt has begun.
-- Inputs: key and attempt. Returns: who held the lease, since when.

-- name: lapse
SELECT worker, activated_at_ms FROM ew_history WHERE key = ? AND attempt = ? AND step = 0 AND kind = 'lapse';

-- name: forget_lapse
DELETE FROM ew_history WHERE key = ? AND attempt = ? AND step = 0;

-- name: insert_leased
INSERT INTO ew_leased (key, queue, lane, urgency, run_at_ms, attempt, attempts, max_attempts,
  activated_at_ms, lease_until_ms, worker)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);
