-- Purpose: keys that may match a filter, newest first.
-- Inputs: queues, cursor (keys below it), bound, states, the instant until which pending jobs are to run. Returns: keys; the jobs are then read by get.sql and matched.

-- name: all
SELECT key FROM {schema}.job WHERE key < $1 ORDER BY key DESC LIMIT $2;

-- name: some
-- Of some queues ($1), in some states ($4; live ones: 1 pending, 2 processing), in one snapshot: a job that moves is met once.
SELECT key FROM (
  (SELECT key FROM {schema}.live WHERE 1 = ANY($4::smallint[]) AND queue_id = ANY($1::int[]) AND key < $2 AND state + 0 < 2 AND run_at_ms <= $5
   ORDER BY key DESC LIMIT $3)
  UNION ALL
  (SELECT b.key FROM unnest($1::int[]) AS q(id) CROSS JOIN LATERAL (
     SELECT a.key FROM {schema}.live a WHERE 2 = ANY($4::smallint[]) AND a.queue_id = q.id AND a.key < $2 AND a.state = 2 ORDER BY a.key DESC LIMIT $3) b
   ORDER BY b.key DESC LIMIT $3)
  UNION ALL
  (SELECT f.key FROM unnest($1::int[]) AS q(id) CROSS JOIN unnest($4::smallint[]) AS s(state) CROSS JOIN LATERAL (
     SELECT key FROM {schema}.finished f WHERE s.state > 2 AND f.queue_id = q.id AND f.state = s.state AND f.key < $2
     ORDER BY f.key DESC LIMIT $3) f)
) k ORDER BY key DESC LIMIT $3;

-- name: queues
SELECT id, type, grp FROM {schema}.queue;
