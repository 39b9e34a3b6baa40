-- Purpose: change the priority of pending jobs.
-- Inputs: sorted keys, priority. Returns: the changed jobs, as they were before.

-- name: set_priority
UPDATE {schema}.live l SET rank = -$2::int WHERE l.key = ANY($1::bigint[]) AND l.state + 0 < 2
RETURNING l.key, 1, l.attempts, l.max_attempts;
