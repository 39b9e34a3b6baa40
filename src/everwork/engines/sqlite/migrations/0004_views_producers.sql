-- Version 4. Views for people who ask by SQL; their columns are a promise, see docs/sql.md. migrate.py names them `jobs` and
-- `dead_letters` too, if these names are free: the file may hold the user's own tables.

CREATE VIEW ew_views AS SELECT 1 AS version;

-- Most jobs have no correlation id: they write nothing here.
CREATE INDEX ew_correlation ON ew_job (correlation_id) WHERE correlation_id IS NOT NULL;

-- What every job has, whatever its state. priority and run_at_ms are part of the key by which a pending job's row is found.
CREATE VIEW ew_record AS
SELECT j.key, q.type, q.grp, j.queue, j.lane, j.created_at_ms, j.expires_at_ms, j.timeout_ms, j.dedupe_key, j.correlation_id,
  j.copy_of, j.variables, j.headers,
  COALESCE((SELECT v.priority FROM ew_revision v WHERE v.key = j.key), j.priority) AS priority,
  COALESCE((SELECT v.run_at_ms FROM ew_revision v WHERE v.key = j.key), j.run_at_ms) AS run_at_ms
FROM ew_job j JOIN ew_queue q ON q.id = j.queue;

-- Where each job is now: one arm per table and state, so that a filter by state reads no other one. An arm compares the whole key
-- of its table, so that one job is found without a walk through the others; `+`: what is leased is few, and leads.
CREATE VIEW ew_place AS
SELECT d.*, 'pending' AS state, r.attempt, r.attempts, r.max_attempts, NULL AS activated_at_ms, NULL AS lease_until_ms,
  NULL AS finished_at_ms, NULL AS worker, NULL AS ended_by, NULL AS error, NULL AS error_code
FROM ew_record d JOIN ew_ready r
  ON r.queue = d.queue AND r.lane = d.lane AND r.urgency = -d.priority AND r.run_at_ms = d.run_at_ms AND r.key = d.key
UNION ALL
SELECT d.*, 'pending', u.attempt, u.attempts, u.max_attempts, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM ew_record d JOIN ew_future u ON u.queue = d.queue AND u.run_at_ms = d.run_at_ms AND u.key = d.key
UNION ALL
SELECT d.*, 'processing', l.attempt, l.attempts, l.max_attempts, l.activated_at_ms, l.lease_until_ms,
  NULL, l.worker, NULL, NULL, NULL
FROM ew_leased l JOIN ew_record d ON d.key = +l.key
UNION ALL
SELECT d.*, 'completed', f.attempt, f.attempts, f.max_attempts, f.activated_at_ms, NULL,
  f.finished_at_ms, f.worker, 'complete', NULL, NULL
FROM ew_record d JOIN ew_finished f ON f.queue = d.queue AND f.state = 3 AND f.key = d.key AND f.queue IN (SELECT id FROM ew_queue)
UNION ALL
SELECT d.*, 'failed', f.attempt, f.attempts, f.max_attempts, f.activated_at_ms, NULL,
  f.finished_at_ms, f.worker, f.kind, f.error, f.code
FROM ew_record d JOIN ew_finished f ON f.queue = d.queue AND f.state = 4 AND f.key = d.key AND f.queue IN (SELECT id FROM ew_queue)
UNION ALL
SELECT d.*, 'cancelled', f.attempt, f.attempts, f.max_attempts, f.activated_at_ms, NULL,
  f.finished_at_ms, f.worker, f.kind, f.error, NULL
FROM ew_record d JOIN ew_finished f ON f.queue = d.queue AND f.state = 5 AND f.key = d.key AND f.queue IN (SELECT id FROM ew_queue);

-- last_error of a live job: of its latest attempt that has failed, unless it was requeued since.
CREATE VIEW ew_current AS
SELECT p.*,
  CASE WHEN p.finished_at_ms IS NOT NULL THEN p.error WHEN p.attempt > 0 THEN (
    SELECT CASE h.kind WHEN 'requeue' THEN NULL ELSE h.error END FROM ew_history h
    WHERE h.key = p.key AND h.kind <> 'release' ORDER BY h.attempt DESC, h.step DESC LIMIT 1) END AS last_error,
  CASE WHEN p.state = 'pending' AND p.attempt > 0 THEN COALESCE((
      SELECT h.at_ms FROM ew_history h WHERE h.key = p.key ORDER BY h.attempt DESC, h.step DESC LIMIT 1), p.created_at_ms)
    ELSE COALESCE(p.finished_at_ms, p.activated_at_ms, p.created_at_ms) END AS updated_at_ms
FROM ew_place p;

CREATE VIEW ew_jobs AS
SELECT c.key, c.type, NULLIF(c.grp, '') AS group_name,
  CASE c.lane WHEN '' THEN '<default>' ELSE substr(c.lane, 1, instr(c.lane, char(31)) - 1) END AS tenant,
  c.state, c.priority, c.attempt, c.attempts, c.max_attempts,
  strftime('%Y-%m-%dT%H:%M:%fZ', c.created_at_ms / 1000.0, 'unixepoch') AS created_at,
  strftime('%Y-%m-%dT%H:%M:%fZ', c.run_at_ms / 1000.0, 'unixepoch') AS run_at,
  strftime('%Y-%m-%dT%H:%M:%fZ', c.activated_at_ms / 1000.0, 'unixepoch') AS activated_at,
  strftime('%Y-%m-%dT%H:%M:%fZ', c.lease_until_ms / 1000.0, 'unixepoch') AS lease_until,
  strftime('%Y-%m-%dT%H:%M:%fZ', c.finished_at_ms / 1000.0, 'unixepoch') AS finished_at,
  strftime('%Y-%m-%dT%H:%M:%fZ', c.updated_at_ms / 1000.0, 'unixepoch') AS updated_at,
  strftime('%Y-%m-%dT%H:%M:%fZ', c.expires_at_ms / 1000.0, 'unixepoch') AS expires_at,
  c.worker, c.last_error, c.error_code, c.ended_by, c.correlation_id, c.dedupe_key,
  NULLIF(substr(c.lane, instr(c.lane, char(31)) + 1), '') AS limit_key, c.copy_of, c.timeout_ms, c.variables, c.headers,
  (SELECT s.body FROM ew_result s WHERE s.key = c.key) AS result,
  c.created_at_ms, c.run_at_ms, c.activated_at_ms, c.lease_until_ms, c.finished_at_ms, c.updated_at_ms, c.expires_at_ms
FROM ew_current c;

CREATE VIEW ew_dead_letters AS SELECT * FROM ew_jobs WHERE state = 'failed';

-- The last create of each producer that numbers them, so that one whose answer was lost can be repeated.
-- keys: what it returned, as a JSON list; an earlier job's key is negative.
CREATE TABLE ew_producer (
  id TEXT PRIMARY KEY, number INTEGER NOT NULL, keys TEXT NOT NULL, at_ms INTEGER NOT NULL
) WITHOUT ROWID;

-- What reclaim needs to undo a lapse: since when the job had been due, and its attempts. Nothing is known of other ends,
-- nor of lapses that another store or version has counted.
ALTER TABLE ew_history ADD COLUMN due_at_ms INTEGER;
ALTER TABLE ew_history ADD COLUMN attempts INTEGER;
