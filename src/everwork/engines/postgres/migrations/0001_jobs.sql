-- Version 1. What never changes of a job is written once (job); where it is now is one small row, in `live`
-- while it is pending or processing, in `finished` afterwards. Every name stands in the schema of its own.

CREATE TABLE {schema}.store (id uuid NOT NULL DEFAULT gen_random_uuid(), version int NOT NULL);
INSERT INTO {schema}.store (version) VALUES (0);

CREATE SEQUENCE {schema}.job_key AS bigint;

-- A type with its switches, policy, limits and breaker. breaker_open_until_ms NULL: closed.
-- max_attempts is the policy's, for jobs that name none.
CREATE TABLE {schema}.type (
  name text COLLATE "C" PRIMARY KEY, paused boolean NOT NULL DEFAULT false, policy text, max_attempts smallint,
  max_running int, lane_max_running int, rate_jobs int, rate_ms bigint,
  breaker_failures int NOT NULL DEFAULT 0, breaker_open_until_ms bigint, breaker_probe_key bigint
);

-- A (type, group) pair: what a worker asks for. While only one lane was ever seen (solo_lane) a claim goes
-- straight down the ready index; fair sends it round the lanes.
CREATE TABLE {schema}.queue (
  id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, type text COLLATE "C" NOT NULL, grp text COLLATE "C" NOT NULL,
  solo_lane int, fair boolean NOT NULL DEFAULT false, dropped boolean NOT NULL DEFAULT false, asked_at_ms bigint,
  UNIQUE (type, grp)
);

-- (tenant, limit key) of a queue; limit_key '' is none.
CREATE TABLE {schema}.lane (
  id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, queue_id int NOT NULL,
  tenant text COLLATE "C" NOT NULL, limit_key text COLLATE "C" NOT NULL, UNIQUE (queue_id, tenant, limit_key)
);

CREATE TABLE {schema}.job (
  key bigint PRIMARY KEY, created_at_ms bigint NOT NULL, expires_at_ms bigint, timeout_ms bigint, copy_of bigint,
  queue_id int NOT NULL, lane_id int NOT NULL, max_attempts smallint NOT NULL, variables text NOT NULL,
  headers text, dedupe_key text, correlation_id text, retry text, extra text
) WITH (autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 1000000);

-- state: 0 pending and scheduled, 1 pending and ready, 2 processing. rank = -priority, so that the order of G9 is
-- ascending in every column. While the job is pending, activated_at_ms is the end of its latest attempt. No index holds lease_until_ms: heartbeats stay in their page.
CREATE TABLE {schema}.live (
  key bigint PRIMARY KEY, run_at_ms bigint NOT NULL, expires_at_ms bigint, activated_at_ms bigint, lease_until_ms bigint,
  queue_id int NOT NULL, lane_id int NOT NULL, attempt int NOT NULL DEFAULT 0, state smallint NOT NULL, rank smallint NOT NULL,
  attempts smallint NOT NULL DEFAULT 0, max_attempts smallint NOT NULL, worker text
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
        autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 200000,
        autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 100000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX live_ready ON {schema}.live (queue_id, lane_id, rank, run_at_ms, key) WHERE state = 1;
CREATE INDEX live_future ON {schema}.live (queue_id, run_at_ms, key) WHERE state = 0;
CREATE INDEX live_busy ON {schema}.live (key) WHERE state = 2;
CREATE INDEX live_expiry ON {schema}.live (expires_at_ms, key) WHERE expires_at_ms IS NOT NULL AND state < 2;

-- Its key is the order in which it is listed, so that no second index is written. kind NULL: completed.
CREATE TABLE {schema}.finished (
  key bigint NOT NULL, run_at_ms bigint NOT NULL, finished_at_ms bigint NOT NULL, activated_at_ms bigint,
  queue_id int NOT NULL, lane_id int NOT NULL, attempt int NOT NULL, state smallint NOT NULL, rank smallint NOT NULL,
  attempts smallint NOT NULL, max_attempts smallint NOT NULL, worker text, kind text, error text, code text,
  PRIMARY KEY (queue_id, state, key)
) WITH (autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 1000000);

CREATE TABLE {schema}.result (key bigint PRIMARY KEY, body text NOT NULL);

-- How attempts ended, except completions and cancellations, which stand in `finished`. step 0: the attempt's end, 1: a requeue.
CREATE TABLE {schema}.history (
  key bigint NOT NULL, at_ms bigint NOT NULL, activated_at_ms bigint, retry_at_ms bigint, attempt int NOT NULL,
  step smallint NOT NULL, kind text NOT NULL, worker text, error text, PRIMARY KEY (key, attempt, step)
);

CREATE TABLE {schema}.dedupe (
  type text COLLATE "C" NOT NULL, tenant text COLLATE "C" NOT NULL, dedupe_key text COLLATE "C" NOT NULL, key bigint NOT NULL,
  PRIMARY KEY (type, tenant, dedupe_key)
);

-- Each transaction appends its net changes, so that no two writers meet in a row; the sweep folds them; readers sum both.
CREATE TABLE {schema}.count_delta (
  queue_id int NOT NULL, pending int NOT NULL DEFAULT 0, processing int NOT NULL DEFAULT 0, completed int NOT NULL DEFAULT 0,
  failed int NOT NULL DEFAULT 0, cancelled int NOT NULL DEFAULT 0, tenant text COLLATE "C" NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE TABLE {schema}.count_total (
  queue_id int NOT NULL, tenant text COLLATE "C" NOT NULL, pending bigint NOT NULL, processing bigint NOT NULL,
  completed bigint NOT NULL, failed bigint NOT NULL, cancelled bigint NOT NULL, PRIMARY KEY (queue_id, tenant)
) WITH (fillfactor = 50);

CREATE TABLE {schema}.work_delta (
  hour int NOT NULL, queue_id int NOT NULL, completed int NOT NULL DEFAULT 0, failed int NOT NULL DEFAULT 0,
  retried int NOT NULL DEFAULT 0, execution_ms bigint NOT NULL, wait_ms bigint NOT NULL, worker text NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE TABLE {schema}.work_hour (
  hour int NOT NULL, queue_id int NOT NULL, worker text COLLATE "C" NOT NULL, completed bigint NOT NULL, failed bigint NOT NULL,
  retried bigint NOT NULL, execution_ms bigint NOT NULL, wait_ms bigint NOT NULL, PRIMARY KEY (hour, queue_id, worker)
);

CREATE TABLE {schema}.registry (
  kind text COLLATE "C" NOT NULL, name text COLLATE "C" NOT NULL, body text NOT NULL, until_ms bigint, PRIMARY KEY (kind, name)
) WITH (fillfactor = 50);

-- What a claim answers: a job handed to a worker; or a note, see functions/activate.sql.
CREATE TYPE {schema}.leased AS (
  key bigint, attempt int, attempts smallint, max_attempts smallint, type text, grp text, tenant text, lease_until_ms bigint,
  variables text, headers text, priority smallint, run_at_ms bigint, created_at_ms bigint, timeout_ms bigint, correlation_id text,
  limit_key text, extra text
);
