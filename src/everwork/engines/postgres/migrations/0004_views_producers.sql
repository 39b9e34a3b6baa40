-- Version 4. Views for people who ask by SQL; their columns are a promise, see docs/sql.md.

CREATE VIEW {schema}.ew_views AS SELECT 1 AS version;

-- Most jobs have no correlation id: they write nothing here.
CREATE INDEX job_correlation ON {schema}.job (correlation_id) WHERE correlation_id IS NOT NULL;

-- Beside finished_failed, which automatic requeues walk: rejected jobs, so that all dead letters are found by the instant of their failure.
CREATE INDEX finished_rejected ON {schema}.finished (queue_id, finished_at_ms, key) WHERE state = 4 AND kind = 'reject';

-- What every job has, whatever its state.
CREATE VIEW {schema}.ew_record AS
SELECT j.key, q.type, nullif(q.grp, '') AS group_name, x.tenant, nullif(x.limit_key, '') AS limit_key, j.queue_id, j.created_at_ms,
  j.expires_at_ms, j.timeout_ms, j.dedupe_key, j.correlation_id, j.copy_of, j.variables, j.headers
FROM {schema}.job j JOIN {schema}.queue q ON q.id = j.queue_id JOIN {schema}.lane x ON x.id = j.lane_id;

-- Where each job is now: one arm per state, so that a filter by state reads no other one.
CREATE VIEW {schema}.ew_place AS
SELECT d.*, 'pending' AS state, -l.rank AS priority, l.attempt, l.attempts, l.max_attempts, l.run_at_ms, NULL::bigint AS activated_at_ms,
  NULL::bigint AS lease_until_ms, NULL::bigint AS finished_at_ms, NULL::text AS worker, NULL::text AS ended_by, NULL::text AS error,
  NULL::text AS error_code
FROM {schema}.ew_record d JOIN {schema}.live l ON l.key = d.key AND l.state < 2
UNION ALL
SELECT d.*, 'processing', -l.rank, l.attempt, l.attempts, l.max_attempts, l.run_at_ms, l.activated_at_ms,
  l.lease_until_ms, NULL, l.worker, NULL, NULL, NULL
FROM {schema}.ew_record d JOIN {schema}.live l ON l.key = d.key AND l.queue_id = d.queue_id AND l.state = 2
UNION ALL
SELECT d.*, 'completed', -f.rank, f.attempt, f.attempts, f.max_attempts, f.run_at_ms, f.activated_at_ms,
  NULL, f.finished_at_ms, f.worker, 'complete', NULL, NULL
FROM {schema}.ew_record d JOIN {schema}.finished f ON f.queue_id = d.queue_id AND f.state = 3 AND f.key = d.key
UNION ALL
SELECT d.*, 'failed', -f.rank, f.attempt, f.attempts, f.max_attempts, f.run_at_ms, f.activated_at_ms,
  NULL, f.finished_at_ms, f.worker, f.kind, f.error, f.code
FROM {schema}.ew_record d JOIN {schema}.finished f ON f.queue_id = d.queue_id AND f.state = 4 AND f.key = d.key
UNION ALL
SELECT d.*, 'cancelled', -f.rank, f.attempt, f.attempts, f.max_attempts, f.run_at_ms, f.activated_at_ms,
  NULL, f.finished_at_ms, f.worker, f.kind, f.error, NULL
FROM {schema}.ew_record d JOIN {schema}.finished f ON f.queue_id = d.queue_id AND f.state = 5 AND f.key = d.key;

-- last_error of a live job: of its latest attempt that has failed, unless it was requeued since.
CREATE VIEW {schema}.ew_current AS
SELECT p.*,
  CASE WHEN p.finished_at_ms IS NOT NULL THEN p.error WHEN p.attempt > 0 THEN (
    SELECT CASE WHEN h.kind <> 'requeue' THEN h.error END FROM {schema}.history h
    WHERE h.key = p.key AND h.kind <> 'release' ORDER BY h.attempt DESC, h.step DESC LIMIT 1) END AS last_error,
  CASE WHEN p.state = 'pending' AND p.attempt > 0 THEN coalesce((
      SELECT h.at_ms FROM {schema}.history h WHERE h.key = p.key ORDER BY h.attempt DESC, h.step DESC LIMIT 1), p.created_at_ms)
    ELSE coalesce(p.finished_at_ms, p.activated_at_ms, p.created_at_ms) END AS updated_at_ms
FROM {schema}.ew_place p;

CREATE VIEW {schema}.ew_jobs AS
SELECT c.key, c.type, c.group_name, c.tenant, c.state, c.priority, c.attempt, c.attempts, c.max_attempts,
  to_timestamp(c.created_at_ms / 1000.0) AS created_at, to_timestamp(c.run_at_ms / 1000.0) AS run_at,
  to_timestamp(c.activated_at_ms / 1000.0) AS activated_at, to_timestamp(c.lease_until_ms / 1000.0) AS lease_until,
  to_timestamp(c.finished_at_ms / 1000.0) AS finished_at, to_timestamp(c.updated_at_ms / 1000.0) AS updated_at,
  to_timestamp(c.expires_at_ms / 1000.0) AS expires_at,
  c.worker, c.last_error, c.error_code, c.ended_by, c.correlation_id, c.dedupe_key, c.limit_key, c.copy_of, c.timeout_ms,
  c.variables, c.headers, (SELECT s.body FROM {schema}.result s WHERE s.key = c.key) AS result,
  c.created_at_ms, c.run_at_ms, c.activated_at_ms, c.lease_until_ms, c.finished_at_ms, c.updated_at_ms, c.expires_at_ms
FROM {schema}.ew_current c;

CREATE VIEW {schema}.ew_dead_letters AS SELECT * FROM {schema}.ew_jobs WHERE state = 'failed';

-- A schema that is shared with the user's own tables may have these names already.
DO $$
DECLARE
  name text;
BEGIN
  FOREACH name IN ARRAY ARRAY['jobs', 'dead_letters'] LOOP
    IF to_regclass('{schema}.' || name) IS NULL AND to_regtype('{schema}.' || name) IS NULL THEN
      EXECUTE format('CREATE VIEW {schema}.%I AS SELECT * FROM {schema}.%I', name, 'ew_' || name);
    END IF;
  END LOOP;
END $$;

-- The last create of each producer that numbers them, so that one whose answer was lost can be repeated.
-- keys: what it returned; an earlier job's key is negative.
CREATE TABLE {schema}.producer (
  id text COLLATE "C" PRIMARY KEY, number bigint NOT NULL, at_ms bigint NOT NULL, keys bigint[]
) WITH (fillfactor = 50);

-- What reclaim needs to undo a lapse: since when the job had been due, and its attempts. Nothing is known of other ends,
-- nor of lapses that another store or version has counted.
ALTER TABLE {schema}.history ADD due_at_ms bigint, ADD attempts smallint;
