-- Purpose: find rows that belong to no job. Inputs: none. Returns: how many there are.

-- name: orphans
SELECT (SELECT count(*) FROM ew_ready WHERE key NOT IN (SELECT key FROM ew_job))
  + (SELECT count(*) FROM ew_future WHERE key NOT IN (SELECT key FROM ew_job))
  + (SELECT count(*) FROM ew_leased WHERE key NOT IN (SELECT key FROM ew_job));
