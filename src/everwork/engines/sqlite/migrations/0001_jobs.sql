-- Version 1. A table per place: what never changes of a job is written once (ew_job); where the job
-- is now is one small row in exactly one of ew_ready, ew_future, ew_leased, ew_finished.
-- Names carry a prefix because the file may hold the user's own tables too.

-- Keys come from a counter: a rowid would start again once the table is empty.
CREATE TABLE ew_seq (last INTEGER NOT NULL);
INSERT INTO ew_seq VALUES (0);

-- A type with its switches, policy, limits and breaker. breaker_open_until_ms NULL: closed.
CREATE TABLE ew_type (
  name TEXT PRIMARY KEY, paused INTEGER NOT NULL DEFAULT 0, policy TEXT,
  max_running INTEGER, lane_max_running INTEGER, rate_jobs INTEGER, rate_ms INTEGER,
  breaker_failures INTEGER NOT NULL DEFAULT 0, breaker_open_until_ms INTEGER, breaker_probe_key INTEGER
) WITHOUT ROWID;

-- A (type, group) pair: what a worker asks for. While only one lane was ever seen (solo), a claim goes
-- straight down ew_ready; fair = 1 sends it round the lanes, and turn counts the turns.
CREATE TABLE ew_queue (
  id INTEGER PRIMARY KEY AUTOINCREMENT, type TEXT NOT NULL, grp TEXT NOT NULL,
  solo TEXT, fair INTEGER NOT NULL DEFAULT 0, turn INTEGER NOT NULL DEFAULT 0,
  running INTEGER NOT NULL DEFAULT 0, asked_at_ms INTEGER, dropped INTEGER NOT NULL DEFAULT 0, UNIQUE (type, grp)
);

-- lane: '' for the default tenant without limit key, else tenant || char(31) || limit key.
CREATE TABLE ew_job (
  key INTEGER PRIMARY KEY, queue INTEGER NOT NULL, lane TEXT NOT NULL, priority INTEGER NOT NULL,
  run_at_ms INTEGER NOT NULL, created_at_ms INTEGER NOT NULL, max_attempts INTEGER NOT NULL, variables TEXT NOT NULL,
  dedupe_key TEXT, correlation_id TEXT, expires_at_ms INTEGER, timeout_ms INTEGER, headers TEXT, retry TEXT,
  extra TEXT, copy_of INTEGER
);

-- A job that was retried, rescheduled or given another priority: where its pending row stands now.
CREATE TABLE ew_revision (key INTEGER PRIMARY KEY, run_at_ms INTEGER NOT NULL, priority INTEGER NOT NULL);

-- Clustered in the order of G9, so that a claim reads and deletes one range. urgency = -priority.
CREATE TABLE ew_ready (
  queue INTEGER NOT NULL, lane TEXT NOT NULL, urgency INTEGER NOT NULL, run_at_ms INTEGER NOT NULL, key INTEGER NOT NULL,
  attempt INTEGER NOT NULL, attempts INTEGER NOT NULL, max_attempts INTEGER NOT NULL,
  PRIMARY KEY (queue, lane, urgency, run_at_ms, key)
) WITHOUT ROWID;

CREATE TABLE ew_future (
  queue INTEGER NOT NULL, run_at_ms INTEGER NOT NULL, key INTEGER NOT NULL, lane TEXT NOT NULL, urgency INTEGER NOT NULL,
  attempt INTEGER NOT NULL, attempts INTEGER NOT NULL, max_attempts INTEGER NOT NULL,
  PRIMARY KEY (queue, run_at_ms, key)
) WITHOUT ROWID;

-- Only what is in flight, so the sweep scans it and no index on the deadline is kept.
CREATE TABLE ew_leased (
  key INTEGER PRIMARY KEY, queue INTEGER NOT NULL, lane TEXT NOT NULL, urgency INTEGER NOT NULL, run_at_ms INTEGER NOT NULL,
  attempt INTEGER NOT NULL, attempts INTEGER NOT NULL, max_attempts INTEGER NOT NULL,
  activated_at_ms INTEGER NOT NULL, lease_until_ms INTEGER NOT NULL, worker TEXT NOT NULL
);

-- Clustered as it is listed, so that no second index is written. kind NULL: completed as usual.
CREATE TABLE ew_finished (
  queue INTEGER NOT NULL, state INTEGER NOT NULL, key INTEGER NOT NULL, attempt INTEGER NOT NULL, attempts INTEGER NOT NULL,
  max_attempts INTEGER NOT NULL, finished_at_ms INTEGER NOT NULL, activated_at_ms INTEGER, worker TEXT,
  kind TEXT, error TEXT, code TEXT, PRIMARY KEY (queue, state, key)
) WITHOUT ROWID;

CREATE TABLE ew_result (key INTEGER PRIMARY KEY, body TEXT NOT NULL);

-- How attempts ended, except completions and cancellations, which stand in ew_finished.
CREATE TABLE ew_history (
  key INTEGER NOT NULL, attempt INTEGER NOT NULL, step INTEGER NOT NULL, kind TEXT NOT NULL, at_ms INTEGER NOT NULL,
  worker TEXT, error TEXT, activated_at_ms INTEGER, retry_at_ms INTEGER, PRIMARY KEY (key, attempt, step)
) WITHOUT ROWID;

CREATE TABLE ew_dedupe (
  type TEXT NOT NULL, tenant TEXT NOT NULL, dedupe_key TEXT NOT NULL, key INTEGER NOT NULL,
  PRIMARY KEY (type, tenant, dedupe_key)
) WITHOUT ROWID;

CREATE TABLE ew_expiry (expires_at_ms INTEGER NOT NULL, key INTEGER NOT NULL, PRIMARY KEY (expires_at_ms, key)) WITHOUT ROWID;

-- open = 1: has ready work and room, so a claim never meets a lane that is empty or at its limit.
CREATE TABLE ew_lane (
  queue INTEGER NOT NULL, lane TEXT NOT NULL, served INTEGER NOT NULL DEFAULT 0, open INTEGER NOT NULL DEFAULT 1,
  busy INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (queue, lane)
) WITHOUT ROWID;
CREATE INDEX ew_lane_turn ON ew_lane (queue, served) WHERE open = 1;

-- Each transaction appends its net changes; the sweep folds them; readers sum both.
CREATE TABLE ew_delta (queue INTEGER NOT NULL, tenant TEXT NOT NULL, state INTEGER NOT NULL, jobs INTEGER NOT NULL);
CREATE TABLE ew_tally (
  queue INTEGER NOT NULL, tenant TEXT NOT NULL, state INTEGER NOT NULL, jobs INTEGER NOT NULL,
  PRIMARY KEY (queue, tenant, state)
) WITHOUT ROWID;

CREATE TABLE ew_hourly (
  hour INTEGER NOT NULL, queue INTEGER NOT NULL, worker TEXT NOT NULL, completed INTEGER NOT NULL, failed INTEGER NOT NULL,
  retried INTEGER NOT NULL, execution_ms INTEGER NOT NULL, wait_ms INTEGER NOT NULL, PRIMARY KEY (hour, queue, worker)
) WITHOUT ROWID;

CREATE TABLE ew_registry (
  kind TEXT NOT NULL, name TEXT NOT NULL, body TEXT NOT NULL, until_ms INTEGER, PRIMARY KEY (kind, name)
) WITHOUT ROWID;
