-- Purpose: insert jobs dumped from another store, keeping their keys.
-- Inputs: rows built from JobRecord. Returns: the keys that already exist. The other rows are written by statements
--   of create.sql and shared.sql.

-- name: existing
SELECT j.key FROM json_each(?1) k CROSS JOIN ew_job j ON j.key = k.value;

-- name: raise_keys
UPDATE ew_seq SET last = max(last, ?);

-- name: insert_rounds
INSERT INTO ew_back (key, rounds) VALUES (?, ?);

-- name: look_back
-- If a loaded dead letter failed no later than the last one checked, the sweep checks again from its time on.
UPDATE ew_queue SET back_at_ms = ?2 - 1, back_key = 0 WHERE id = ?1 AND back_at_ms >= ?2;

-- name: insert_leased
INSERT INTO ew_leased (key, queue, lane, urgency, run_at_ms, attempt, attempts, max_attempts,
  activated_at_ms, lease_until_ms, worker)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);
