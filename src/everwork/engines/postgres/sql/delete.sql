-- Purpose: delete finished jobs with everything that belongs to them.
-- Inputs: sorted keys; for each the latest attempt that the caller has seen, or NULL.
-- Returns: the deleted jobs, as they were before.

-- name: delete
WITH gone AS (
  DELETE FROM {schema}.finished f WHERE f.ctid = ANY(ARRAY(
    SELECT p.ctid FROM unnest($1::bigint[], $2::int[]) AS g(key, attempt)
    CROSS JOIN LATERAL (SELECT b.queue_id FROM {schema}.job b WHERE b.key = g.key LIMIT 1) j
    CROSS JOIN LATERAL (SELECT a.ctid FROM {schema}.finished a
      WHERE a.queue_id = j.queue_id AND a.state IN (3, 4, 5) AND a.key = g.key
        AND (g.attempt IS NULL OR a.attempt = g.attempt) LIMIT 1) p)) RETURNING f.*),
jobs AS (
  DELETE FROM {schema}.job WHERE key = ANY(ARRAY(SELECT key FROM gone))
  RETURNING key, queue_id, lane_id, dedupe_key),
results AS (DELETE FROM {schema}.result WHERE key = ANY(ARRAY(SELECT key FROM gone))),
histories AS (DELETE FROM {schema}.history WHERE key = ANY(ARRAY(SELECT key FROM gone))),
forgotten AS (
  DELETE FROM {schema}.dedupe d USING jobs j, {schema}.queue q, {schema}.lane x
  WHERE j.dedupe_key IS NOT NULL AND q.id = j.queue_id AND x.id = j.lane_id
    AND d.type = q.type AND d.tenant = x.tenant AND d.dedupe_key = j.dedupe_key AND d.key = j.key),
counted AS (
  INSERT INTO {schema}.count_delta (queue_id, tenant, completed, failed, cancelled)
  SELECT x.queue_id, x.tenant, -count(*) FILTER (WHERE g.state = 3), -count(*) FILTER (WHERE g.state = 4),
    -count(*) FILTER (WHERE g.state = 5)
  FROM gone g JOIN {schema}.lane x ON x.id = g.lane_id GROUP BY 1, 2)
SELECT key, state::int, attempts, max_attempts FROM gone;
