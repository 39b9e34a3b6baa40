-- Purpose: extend live leases.
-- Inputs: a JSON object {"key": attempt, ...}, the new deadline. Returns: the keys whose leases are held.

-- name: extend
UPDATE ew_leased SET lease_until_ms = ?2 WHERE key IN (
  SELECT l.key FROM json_each(?1) o
  CROSS JOIN ew_leased l ON l.key = CAST(o.key AS INTEGER) AND l.attempt = o.value)
RETURNING key, attempt;
