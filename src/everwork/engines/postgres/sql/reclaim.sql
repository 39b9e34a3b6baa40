-- Purpose: restore expired leases for which no other attempt has started, and undo what their expiry counted.
-- Inputs: sorted keys, attempts, lease_ms, now, the note of automatic requeues. Returns: nothing; see
--   functions/reclaim.sql.

-- name: reclaim
SELECT {schema}.reclaim_jobs($1, $2, $3, {schema}.now_ms($4), $5);
