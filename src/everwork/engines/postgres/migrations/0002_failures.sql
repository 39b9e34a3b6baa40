-- Version 2. What a type's policy says of failures and limits stands in columns of its own, for statements that decide in the store:
-- the breaker's rule, when dead letters come back by themselves and how often, how long finished jobs are kept.
ALTER TABLE {schema}.type
  ADD breaker_probe_attempt int, ADD breaker_failures_max int, ADD breaker_open_ms bigint,
  ADD requeue_ms bigint, ADD requeue_rounds smallint, ADD keep_completed_ms bigint, ADD keep_failed_ms bigint;

-- Claims of a queue of a limited type pass one after the other, by the lock on its row. The rate's window: its beginning, and how many jobs
-- have started in it. low_key: no job below it runs, as was found by a count from 0 on at counted_at_ms. is_full: the latest claim found
-- every lane full.
CREATE TABLE {schema}.gate (queue_id int PRIMARY KEY, since_ms bigint, low_key bigint NOT NULL DEFAULT 0, counted_at_ms bigint NOT NULL DEFAULT 0,
  started int NOT NULL DEFAULT 0, is_full boolean NOT NULL DEFAULT false) WITH (fillfactor = 50);

-- How far the dead letters of a queue were looked at by the rule that lets them come back: up to this instant and key.
ALTER TABLE {schema}.queue ADD back_at_ms bigint NOT NULL DEFAULT 0, ADD back_key bigint NOT NULL DEFAULT 0;

-- How often a dead letter came back by itself.
ALTER TABLE {schema}.job ADD rounds smallint;

-- untold: completed in a transaction of the user's, which must not hold up the breaker; it hears of it by the report that follows.
ALTER TABLE {schema}.finished ADD untold boolean;
CREATE INDEX finished_failed ON {schema}.finished (queue_id, finished_at_ms, key) WHERE state = 4 AND kind <> 'reject';

-- What runs of a type and group is counted, from a key on; and every lease is looked at by sweeps.
DROP INDEX {schema}.live_busy;
CREATE INDEX live_busy ON {schema}.live (queue_id, key) WHERE state = 2;

-- Functions that answer more than they did, or take more.
DROP FUNCTION IF EXISTS {schema}.complete_jobs(jsonb, bigint);
DROP FUNCTION IF EXISTS {schema}.end_attempts(jsonb, boolean, bigint);
DROP FUNCTION IF EXISTS {schema}.claim_by_turns(int, text, text, text[], bigint[], int[], int, text[], int, smallint, bigint);
DROP FUNCTION IF EXISTS {schema}.lanes_with_work(int, int[], int, int, bigint);
