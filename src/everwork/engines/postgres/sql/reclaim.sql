-- Purpose: take back leases that have lapsed, as long as no other attempt has begun, and undo what the lapse counted.
-- Inputs: sorted keys, attempts, lease_ms, now, the note of automatic requeues. Returns: nothing; see
--   functions/reclaim.sql.

-- name: reclaim
SELECT {schema}.reclaim_jobs($1, $2, $3, {schema}.now_ms($4), $5);
