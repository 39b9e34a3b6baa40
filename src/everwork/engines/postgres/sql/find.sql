-- Purpose: find the keys of jobs that may match a filter, newest first or in another order.
-- Inputs: queues, cursor (only keys below it), limit, states, the time by which pending jobs must be due, and their
--   minimum attempt number.
-- Returns: keys, with their times unless the order is newest first; get.sql then reads the jobs, and Python code
--   applies the filter.

-- name: all
SELECT key FROM {schema}.job WHERE key < $1 ORDER BY key DESC LIMIT $2;

-- name: correlated
-- `key + 0` makes the planner use the index on correlation ids and sort the result, instead of scanning all keys.
SELECT key FROM {schema}.job WHERE correlation_id = $1 AND key < $2 ORDER BY key + 0 DESC LIMIT $3;

-- name: deduped
-- The jobs that hold the dedupe key ($3), for pairs of type ($1) and tenant ($2).
SELECT d.key FROM unnest($1::text[], $2::text[]) AS p(type, tenant) CROSS JOIN LATERAL (
  SELECT a.key FROM {schema}.dedupe a WHERE a.type = p.type AND a.tenant = p.tenant AND a.dedupe_key = $3 LIMIT 1) d;

-- name: some
-- Jobs of the queues ($1) in the states ($4; the live ones are 1 pending and 2 processing), read in one snapshot so
-- that no job is found twice.
SELECT key FROM (
  (SELECT key FROM {schema}.live
   WHERE 1 = ANY($4::smallint[]) AND queue_id = ANY($1::int[]) AND key < $2 AND state + 0 < 2
     AND run_at_ms <= $5 AND attempt >= $6
   ORDER BY key DESC LIMIT $3)
  UNION ALL
  (SELECT b.key FROM unnest($1::int[]) AS q(id) CROSS JOIN LATERAL (
     SELECT a.key FROM {schema}.live a
     WHERE 2 = ANY($4::smallint[]) AND a.queue_id = q.id AND a.key < $2 AND a.state = 2
     ORDER BY a.key DESC LIMIT $3) b
   ORDER BY b.key DESC LIMIT $3)
  UNION ALL
  (SELECT f.key FROM unnest($1::int[]) AS q(id) CROSS JOIN unnest($4::smallint[]) AS s(state) CROSS JOIN LATERAL (
     SELECT key FROM {schema}.finished f WHERE s.state > 2 AND f.queue_id = q.id AND f.state = s.state AND f.key < $2
     ORDER BY f.key DESC LIMIT $3) f)
) k ORDER BY key DESC LIMIT $3;

-- name: latest
-- At most $4 failed jobs of the queues ($1), before a time ($2) and key ($3), from two indexes; each job is in only
-- one of them.
SELECT f.finished_at_ms, f.key FROM unnest($1::int[]) AS q(id) CROSS JOIN LATERAL (
  (SELECT a.finished_at_ms, a.key FROM {schema}.finished a
   WHERE a.queue_id = q.id AND a.state = 4 AND a.kind <> 'reject'
     AND (a.finished_at_ms, a.key) < ($2::bigint, $3::bigint)
   ORDER BY a.finished_at_ms DESC, a.key DESC LIMIT $4)
  UNION ALL
  (SELECT a.finished_at_ms, a.key FROM {schema}.finished a
   WHERE a.queue_id = q.id AND a.state = 4 AND a.kind = 'reject'
     AND (a.finished_at_ms, a.key) < ($2::bigint, $3::bigint)
   ORDER BY a.finished_at_ms DESC, a.key DESC LIMIT $4)) f
ORDER BY 1 DESC, 2 DESC LIMIT $4;

-- name: due
-- At most $4 jobs of the queues ($1), after a time ($2) and key ($3), up to $5, with attempt at least $6: scheduled
-- jobs, and the first jobs of each lane and priority, found as in oldest.sql.
WITH RECURSIVE range AS (
  SELECT q.id, h.lane_id, h.rank FROM unnest($1::int[]) AS q(id) CROSS JOIN LATERAL (
    SELECT j.lane_id, j.rank FROM {schema}.live j WHERE j.state = 1 AND j.queue_id = q.id
    ORDER BY j.lane_id, j.rank, j.run_at_ms, j.key LIMIT 1) h
  UNION ALL
  SELECT b.id, h.lane_id, h.rank FROM range b CROSS JOIN LATERAL (
    SELECT j.lane_id, j.rank FROM {schema}.live j
    WHERE j.state = 1 AND j.queue_id = b.id AND (j.lane_id, j.rank) > (b.lane_id, b.rank)
    ORDER BY j.lane_id, j.rank, j.run_at_ms, j.key LIMIT 1) h)
SELECT p.run_at_ms, p.key FROM (
  SELECT j.run_at_ms, j.key FROM range r CROSS JOIN LATERAL (
    SELECT a.run_at_ms, a.key FROM {schema}.live a
    WHERE a.state = 1 AND a.queue_id = r.id AND a.lane_id = r.lane_id AND a.rank = r.rank
      AND (a.run_at_ms, a.key) > ($2::bigint, $3::bigint) AND a.run_at_ms <= $5 AND a.attempt >= $6
    ORDER BY a.run_at_ms, a.key LIMIT $4) j
  UNION ALL
  SELECT j.run_at_ms, j.key FROM unnest($1::int[]) AS q(id) CROSS JOIN LATERAL (
    SELECT a.run_at_ms, a.key FROM {schema}.live a
    WHERE a.state = 0 AND a.queue_id = q.id AND (a.run_at_ms, a.key) > ($2::bigint, $3::bigint)
      AND a.run_at_ms <= $5 AND a.attempt >= $6
    ORDER BY a.run_at_ms, a.key LIMIT $4) j) p
ORDER BY 1, 2 LIMIT $4;

-- name: queues
SELECT id, type, grp FROM {schema}.queue;

-- name: of_job
-- The keys among $1 whose jobs have one of the tenants ($2), the correlation id ($3) and the dedupe key ($4), and
-- were created at or after $5 and before $6.
SELECT j.key FROM unnest($1::bigint[]) AS k(key)
CROSS JOIN LATERAL (SELECT * FROM {schema}.job a WHERE a.key = k.key LIMIT 1) j
WHERE ($3::text IS NULL OR j.correlation_id = $3) AND ($4::text IS NULL OR j.dedupe_key = $4)
  AND j.created_at_ms >= $5 AND j.created_at_ms < $6
  AND ($2::text[] IS NULL OR j.lane_id IN (SELECT x.id FROM {schema}.lane x WHERE x.tenant = ANY($2)));

-- name: of_variables
-- For each key ($1), in the given order: the size of the variables in bytes, and whether they contain the text ($2).
SELECT j.key, octet_length(j.variables), strpos(j.variables COLLATE "C", $2::text) > 0
FROM unnest($1::bigint[]) WITH ORDINALITY AS k(key, place)
CROSS JOIN LATERAL (SELECT a.key, a.variables FROM {schema}.job a WHERE a.key = k.key LIMIT 1) j
ORDER BY k.place;

-- name: of_attempt
SELECT j.key, coalesce(f.worker, l.worker),
  CASE WHEN f.key IS NOT NULL THEN f.error ELSE (
    SELECT CASE WHEN h.kind <> 'requeue' THEN h.error END FROM {schema}.history h
    WHERE h.key = j.key AND h.kind <> 'release' ORDER BY h.attempt DESC, h.step DESC LIMIT 1) END
FROM unnest($1::bigint[]) AS k(key)
CROSS JOIN LATERAL (SELECT a.key, a.queue_id FROM {schema}.job a WHERE a.key = k.key LIMIT 1) j
LEFT JOIN LATERAL (SELECT a.key, a.worker, a.error FROM {schema}.finished a
  WHERE a.queue_id = j.queue_id AND a.state IN (3, 4, 5) AND a.key = j.key LIMIT 1) f ON true
LEFT JOIN LATERAL (SELECT a.worker FROM {schema}.live a WHERE f.key IS NULL AND a.key = j.key LIMIT 1) l ON true;
