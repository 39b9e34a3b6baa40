-- Purpose: one step of maintenance.
-- Inputs: instants and limits. Returns: candidates; settle.sql, cancel.sql, requeue.sql and delete.sql change them.

-- name: lapsed
SELECT l.key, l.attempt, l.attempts, l.max_attempts, j.retry, t.policy, l.worker
FROM {schema}.live l CROSS JOIN LATERAL (SELECT a.retry FROM {schema}.job a WHERE a.key = l.key LIMIT 1) j
JOIN {schema}.queue q ON q.id = l.queue_id JOIN {schema}.type t ON t.name = q.type
WHERE l.state = 2 AND l.lease_until_ms <= {schema}.now_ms($1)
  AND NOT {schema}.is_promised(l.key, l.attempt, {schema}.now_ms($1)) LIMIT $2;

-- name: expired
SELECT key FROM {schema}.live WHERE expires_at_ms IS NOT NULL AND state < 2 AND expires_at_ms <= {schema}.now_ms($1)
ORDER BY expires_at_ms, key LIMIT $2;

-- name: stranded
-- Pending jobs of dropped groups: no worker will ever claim them.
-- Uses LATERAL and LIMIT so that no plan scans the table.
SELECT l.key FROM {schema}.queue q CROSS JOIN LATERAL (
  (SELECT a.key FROM {schema}.live a WHERE a.queue_id = q.id AND a.state = 0 LIMIT $1)
  UNION ALL (SELECT b.key FROM {schema}.live b WHERE b.queue_id = q.id AND b.state = 1 LIMIT $1)) l
WHERE q.dropped LIMIT $1;

-- name: rules
-- The queues whose policies requeue dead letters automatically or set how long finished jobs are kept.
SELECT q.id, t.keep_completed_ms, t.keep_failed_ms, CASE WHEN NOT q.dropped THEN t.requeue_ms END, t.requeue_rounds,
  q.back_at_ms, q.back_key
FROM {schema}.type t JOIN {schema}.queue q ON q.type = t.name
WHERE coalesce(t.requeue_ms, t.keep_completed_ms, t.keep_failed_ms) IS NOT NULL;

-- name: dead
-- Dead letters of the queues ($1), for each queue after a time and key ($2, $3) and up to a time ($4).
SELECT q.id, f.finished_at_ms, f.key, coalesce(j.rounds, 0)
FROM unnest($1::int[], $2::bigint[], $3::bigint[], $4::bigint[]) AS q(id, at_ms, key, until_ms)
CROSS JOIN LATERAL (
  SELECT a.finished_at_ms, a.key FROM {schema}.finished a WHERE a.state = 4 AND a.kind <> 'reject' AND a.queue_id = q.id
    AND (a.finished_at_ms, a.key) > (q.at_ms, q.key) AND a.finished_at_ms <= q.until_ms
  ORDER BY a.finished_at_ms, a.key LIMIT $5) f
CROSS JOIN LATERAL (SELECT b.rounds FROM {schema}.job b WHERE b.key = f.key LIMIT 1) j LIMIT $5;

-- name: move_back_marks
-- Inputs: queues, and for each the time and key after which its dead letters were read, and the time and key where
--   the read ended. A mark that was reset in the meantime is kept.
UPDATE {schema}.queue q SET back_at_ms = s.end_ms, back_key = s.end_key
FROM unnest($1::int[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[]) AS s(id, at_ms, key, end_ms, end_key)
WHERE q.id = s.id AND (q.back_at_ms, q.back_key) = (s.at_ms, s.key);

-- name: reset_back_marks
-- Makes the sweep start over with the first dead letter.
UPDATE {schema}.queue SET back_at_ms = 0, back_key = 0 WHERE back_at_ms > 0;

-- name: finished
SELECT queue_id, state, key, finished_at_ms, attempt FROM {schema}.finished WHERE (queue_id, state, key) > ($1, $2, $3)
ORDER BY queue_id, state, key LIMIT $4;

-- name: deltas
SELECT greatest((SELECT count(*) FROM (SELECT 1 FROM {schema}.count_delta LIMIT $1) d),
    (SELECT count(*) FROM (SELECT 1 FROM {schema}.work_delta LIMIT $1) w)),
  (SELECT count(*) FROM (SELECT 1 FROM {schema}.measure_delta LIMIT $1) m),
  (SELECT count(*) FROM (SELECT 1 FROM {schema}.open_lane_delta LIMIT $1) n);

-- name: fold_counts
WITH d AS (
  DELETE FROM {schema}.count_delta WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM {schema}.count_delta LIMIT $1 FOR UPDATE SKIP LOCKED)) RETURNING *),
folded AS (
  INSERT INTO {schema}.count_total AS t (queue_id, tenant, pending, processing, completed, failed, cancelled)
  SELECT queue_id, tenant, sum(pending), sum(processing), sum(completed), sum(failed), sum(cancelled) FROM d
  GROUP BY 1, 2 ORDER BY 1, 2
  ON CONFLICT (queue_id, tenant) DO UPDATE SET pending = t.pending + excluded.pending,
    processing = t.processing + excluded.processing, completed = t.completed + excluded.completed,
    failed = t.failed + excluded.failed, cancelled = t.cancelled + excluded.cancelled)
SELECT count(*),
  coalesce(sum(completed + failed + cancelled) FILTER (WHERE completed + failed + cancelled > 0), 0)::bigint
FROM d;

-- name: fold_work
-- $2: the maximum number of rows per hour; $3: the name under which further workers are counted together.
WITH d AS (
  DELETE FROM {schema}.work_delta WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM {schema}.work_delta LIMIT $1 FOR UPDATE SKIP LOCKED)) RETURNING *),
s AS MATERIALIZED (
  SELECT d.hour, d.queue_id, d.worker, sum(d.completed) AS completed, sum(d.failed) AS failed,
    sum(d.retried) AS retried, sum(d.execution_ms) AS execution_ms, sum(d.wait_ms) AS wait_ms,
    EXISTS (SELECT 1 FROM {schema}.work_hour w
      WHERE w.hour = d.hour AND w.queue_id = d.queue_id AND w.worker = d.worker) AS is_known
  FROM d GROUP BY 1, 2, 3),
h AS MATERIALIZED (
  SELECT x.hour, (SELECT count(*) FROM (SELECT 1 FROM {schema}.work_hour w WHERE w.hour = x.hour LIMIT $2) r) AS rows
  FROM (SELECT DISTINCT s.hour FROM s WHERE NOT s.is_known) x),
n AS MATERIALIZED (
  SELECT s.*, coalesce(h.rows, 0)
    + row_number() OVER (PARTITION BY s.hour, s.is_known ORDER BY s.completed + s.failed DESC, s.worker) AS place
  FROM s LEFT JOIN h ON h.hour = s.hour AND NOT s.is_known)
INSERT INTO {schema}.work_hour AS t (hour, queue_id, worker, completed, failed, retried, execution_ms, wait_ms)
SELECT n.hour, n.queue_id, CASE WHEN n.is_known OR n.place <= $2 THEN n.worker ELSE $3 END, sum(n.completed),
  sum(n.failed), sum(n.retried), sum(n.execution_ms), sum(n.wait_ms)
FROM n GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
ON CONFLICT (hour, queue_id, worker) DO UPDATE SET completed = t.completed + excluded.completed,
  failed = t.failed + excluded.failed, retried = t.retried + excluded.retried,
  execution_ms = t.execution_ms + excluded.execution_ms, wait_ms = t.wait_ms + excluded.wait_ms;

-- name: fold_measures
WITH d AS (
  DELETE FROM {schema}.measure_delta WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM {schema}.measure_delta LIMIT $1 FOR UPDATE SKIP LOCKED)) RETURNING *),
s AS MATERIALIZED (SELECT hour, queue_id, execution, wait, sort, sum(jobs) AS jobs FROM d GROUP BY 1, 2, 3, 4, 5),
folded AS (
  INSERT INTO {schema}.measure_hour AS t (hour, queue_id, what, jobs)
  SELECT s.hour, s.queue_id, n.what, sum(s.jobs) FROM s
  CROSS JOIN LATERAL unnest({schema}.measures_of(s.execution, s.wait, s.sort)) AS n(what)
  GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
  ON CONFLICT (hour, queue_id, what) DO UPDATE SET jobs = t.jobs + excluded.jobs)
SELECT count(*) FROM d;

-- name: queues_with_open_lane_delta
SELECT DISTINCT queue_id FROM {schema}.open_lane_delta;

-- name: fold_open_lane_delta
-- One queue per transaction, which holds the queue's gate.
SELECT {schema}.fold_open_lane_delta($1);

-- name: forget_zeros
-- Statistics are zero where only expired leases were counted and reclaim has restored all of them.
WITH measured AS (DELETE FROM {schema}.measure_hour WHERE jobs = 0),
worked AS (
  DELETE FROM {schema}.work_hour
  WHERE completed = 0 AND failed = 0 AND retried = 0 AND execution_ms = 0 AND wait_ms = 0)
DELETE FROM {schema}.count_total
WHERE pending = 0 AND processing = 0 AND completed = 0 AND failed = 0 AND cancelled = 0;

-- name: forget_hours
-- In a store with little work, deltas may not be folded yet.
WITH measured AS (DELETE FROM {schema}.measure_hour WHERE hour < {schema}.now_ms($1) / 3600000 - $2::bigint),
unfolded AS (DELETE FROM {schema}.measure_delta WHERE hour < {schema}.now_ms($1) / 3600000 - $2::bigint),
unfolded_work AS (DELETE FROM {schema}.work_delta WHERE hour < {schema}.now_ms($1) / 3600000 - $2::bigint)
DELETE FROM {schema}.work_hour WHERE hour < {schema}.now_ms($1) / 3600000 - $2::bigint;

-- name: forget_producers
DELETE FROM {schema}.producer WHERE at_ms < $1;

-- name: forget_more_producers
-- $1: how many producers to keep.
DELETE FROM {schema}.producer
WHERE at_ms < (SELECT p.at_ms FROM {schema}.producer p ORDER BY p.at_ms DESC LIMIT 1 OFFSET $1::bigint - 1);

-- name: purge_types
SELECT {schema}.purge_types({schema}.now_ms($1), $2);

-- name: forget_parked
DELETE FROM {schema}.parked WHERE until_ms NOT BETWEEN $1 AND $1 + {park_ms};

-- name: forget_registered
DELETE FROM {schema}.registry WHERE until_ms <= {schema}.now_ms($1);

-- name: live_rows
-- As the latest vacuum found; 0 before the first one.
SELECT greatest(reltuples, 0)::bigint FROM pg_catalog.pg_class WHERE oid = '{schema}.live'::regclass;

-- name: vacuum
-- Dead rows slow down claims; autovacuum runs once a minute, which is too late at thousands of jobs per second.
VACUUM (SKIP_LOCKED, INDEX_CLEANUP ON, TRUNCATE OFF) {schema}.live;

-- name: vacuum_deltas
VACUUM (SKIP_LOCKED, TRUNCATE OFF) {schema}.count_delta, {schema}.work_delta, {schema}.measure_delta,
  {schema}.count_total, {schema}.registry, {schema}.open_lane_delta, {schema}.open_lane;
