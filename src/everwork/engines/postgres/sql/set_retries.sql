-- Purpose: change how many attempts are left.
-- Inputs: key, new max_attempts, and what was known: is it processing, attempt, attempts. Returns: the key, if that still held.

-- name: set_retries
UPDATE {schema}.live SET max_attempts = $2 WHERE key = $1 AND (state = 2) = $3 AND attempt = $4 AND attempts = $5 RETURNING key;
