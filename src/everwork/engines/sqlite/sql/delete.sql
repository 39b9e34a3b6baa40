-- Purpose: delete finished jobs with everything that belongs to them.
-- Inputs: a JSON array of keys, all of them finished. Returns: nothing. The finished rows are deleted by
--   delete_finished in shared.sql.

-- name: dedupe
DELETE FROM ew_dedupe WHERE (type, tenant, dedupe_key, key) IN (
  SELECT q.type, CASE j.lane WHEN '' THEN ?2 ELSE substr(j.lane, 1, instr(j.lane, char(31)) - 1) END,
    j.dedupe_key, j.key
  FROM json_each(?1) k
  CROSS JOIN ew_job j ON j.key = k.value
  CROSS JOIN ew_queue q ON q.id = j.queue
  WHERE j.dedupe_key IS NOT NULL);

-- name: expiry
DELETE FROM ew_expiry WHERE (expires_at_ms, key) IN (
  SELECT j.expires_at_ms, j.key
  FROM json_each(?1) k
  CROSS JOIN ew_job j ON j.key = k.value
  WHERE j.expires_at_ms IS NOT NULL);

-- name: back
DELETE FROM ew_back WHERE key IN (SELECT value FROM json_each(?1));

-- name: history
DELETE FROM ew_history WHERE key IN (SELECT value FROM json_each(?1));

-- name: result
DELETE FROM ew_result WHERE key IN (SELECT value FROM json_each(?1));

-- name: revision
DELETE FROM ew_revision WHERE key IN (SELECT value FROM json_each(?1));

-- name: job
DELETE FROM ew_job WHERE key IN (SELECT value FROM json_each(?1));
