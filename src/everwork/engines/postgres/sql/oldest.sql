-- Purpose: find when the longest-waiting due job of each type and group became due.
-- Inputs: now, the maximum number of lanes and priorities to read per queue. Returns: Oldest tuples.

-- name: oldest
SELECT * FROM {schema}.oldest_jobs({schema}.now_ms($1), $2);
