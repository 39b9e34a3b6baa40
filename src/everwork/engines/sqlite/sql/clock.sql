-- Purpose: when the host's clock jumps, move stored instants, so that leases, delays and limits keep their length.
-- Inputs: how far the clock has jumped, in ms. Returns: nothing; see each statement.

-- name: stored
-- Returns the boot and the offset of the clock that the stored instants belong to.
SELECT body FROM ew_registry WHERE kind = '#turn' AND name = '#clock';

-- name: store
INSERT INTO ew_registry (kind, name, body) VALUES ('#turn', '#clock', ?)
ON CONFLICT (kind, name) DO UPDATE SET body = excluded.body;

-- name: move_leases
UPDATE ew_leased SET lease_until_ms = lease_until_ms + ?1, activated_at_ms = activated_at_ms + ?1;

-- name: move_retries
-- Jobs that wait for a retry, except those that have been rescheduled since. Returns them, to update their history.
UPDATE ew_future SET run_at_ms = run_at_ms + ?1 WHERE attempts > 0 AND EXISTS (
  SELECT 1 FROM ew_history h
  WHERE h.key = ew_future.key AND h.attempt = ew_future.attempt AND h.step = 0 AND h.retry_at_ms = ew_future.run_at_ms)
RETURNING key, run_at_ms, -urgency, attempt;

-- name: move_history
UPDATE ew_history SET retry_at_ms = ? WHERE key = ? AND attempt = ? AND step = 0;

-- name: move_breakers
UPDATE ew_type SET breaker_open_until_ms = breaker_open_until_ms + ?1 WHERE breaker_open_until_ms IS NOT NULL;

-- name: move_rates
UPDATE ew_queue SET rate_since_ms = rate_since_ms + ?1 WHERE rate_since_ms IS NOT NULL;

-- name: move_entries
UPDATE ew_registry SET until_ms = until_ms + ?1 WHERE until_ms IS NOT NULL;
