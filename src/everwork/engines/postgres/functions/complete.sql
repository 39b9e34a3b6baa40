-- Purpose: complete attempts, in the caller's transaction. The guard is the row: processing, and this very attempt.
-- Inputs: {"key": [attempt, result or null], ...} (attempt 0: not checked), the instant.
-- Returns: the keys that passed, their queues, whether a breaker may have to count them, and whether a limited type may
--   run more jobs now.

-- No join with the input, so that no plan can scan the table; state + 0 keeps the planner off the partial indexes.
-- The index on the key returns the rows in its order: two batches that overlap cannot deadlock.
CREATE OR REPLACE FUNCTION {schema}.complete_jobs(done jsonb, at_ms bigint, OUT accepted bigint[], OUT queues int[],
  OUT is_watched boolean, OUT is_limited boolean)
LANGUAGE plpgsql AS $$
DECLARE
  opened_queues int[];
  opened_lanes int[];
BEGIN
  WITH gone AS (
    DELETE FROM live j WHERE j.key = ANY(ARRAY(SELECT k::bigint FROM jsonb_object_keys(done) k)) AND j.state + 0 = 2
      AND (done->(j.key::text)->>0)::int IN (j.attempt, 0)
    RETURNING j.key, j.queue_id, j.lane_id, j.attempt, j.attempts, j.max_attempts, j.rank, j.run_at_ms,
      j.activated_at_ms, j.worker),
  kept AS (
    INSERT INTO finished (key, run_at_ms, finished_at_ms, activated_at_ms, queue_id, lane_id, attempt, state, rank,
      attempts, max_attempts, worker)
    SELECT g.key, g.run_at_ms, at_ms, g.activated_at_ms, g.queue_id, g.lane_id, g.attempt, 3, g.rank,
      g.attempts, g.max_attempts, g.worker FROM gone g),
  answered AS (
    INSERT INTO result (key, body)
    SELECT g.key, done->(g.key::text)->>1 FROM gone g WHERE done->(g.key::text)->>1 IS NOT NULL),
  summed AS MATERIALIZED (
    SELECT g.queue_id, g.lane_id, g.worker, bucket_of(at_ms - g.activated_at_ms) AS execution,
      bucket_of(g.activated_at_ms - g.run_at_ms) AS wait,
      -- Narrow, because sums of bigint are numeric, and sums of those are slow.
      count(*)::int AS n, sum(greatest(0, at_ms - g.activated_at_ms))::bigint AS execution_ms,
      sum(greatest(0, g.activated_at_ms - g.run_at_ms))::bigint AS wait_ms
    FROM gone g GROUP BY 1, 2, 3, 4, 5),
  counted AS (
    INSERT INTO count_delta (queue_id, tenant, processing, completed)
    SELECT s.queue_id, l.tenant, -sum(s.n), sum(s.n) FROM summed s JOIN lane l ON l.id = s.lane_id GROUP BY 1, 2),
  worked AS (
    INSERT INTO work_delta (hour, queue_id, worker, completed, execution_ms, wait_ms)
    SELECT at_ms / 3600000, s.queue_id, s.worker, sum(s.n), sum(s.execution_ms), sum(s.wait_ms) FROM summed s
    GROUP BY 2, 3),
  measured AS (
    INSERT INTO measure_delta (hour, queue_id, jobs, execution, wait)
    SELECT at_ms / 3600000, s.queue_id, sum(s.n), s.execution, s.wait FROM summed s GROUP BY 2, 4, 5)
  SELECT coalesce((SELECT array_agg(g.key) FROM gone g), '{}'), array_agg(s.queue_id),
    bool_or(t.breaker_failures > 0 OR t.breaker_open_until_ms IS NOT NULL),
    bool_or(t.max_running IS NOT NULL OR t.lane_max_running IS NOT NULL),
    CASE WHEN bool_or(t.lane_max_running IS NOT NULL AND q.fair) THEN (SELECT array_agg(a.queue_id) FROM summed a) END,
    CASE WHEN bool_or(t.lane_max_running IS NOT NULL AND q.fair) THEN (SELECT array_agg(a.lane_id) FROM summed a) END
  INTO accepted, queues, is_watched, is_limited, opened_queues, opened_lanes
  FROM (SELECT DISTINCT a.queue_id FROM summed a) s
  JOIN queue q ON q.id = s.queue_id JOIN type t ON t.name = q.type;
  IF opened_lanes IS NOT NULL THEN
    PERFORM note_open_lanes(opened_queues, opened_lanes);
  END IF;
END $$;

-- The same, for a user's own transaction: takes one document. Breakers count it when the outcome is reported
-- afterwards:
-- failures must not wait for the user's commit.
CREATE OR REPLACE FUNCTION {schema}.complete_in(given jsonb) RETURNS bigint[] LANGUAGE plpgsql {plan} AS $$
DECLARE
  at_ms bigint := now_ms((given->>'now')::bigint);
  done record;
BEGIN
  SELECT * INTO done FROM complete_jobs(given->'done', at_ms);
  PERFORM create_events(given, done.accepted, at_ms);
  IF done.is_watched THEN
    UPDATE finished f SET untold = true
    WHERE f.queue_id = ANY(done.queues) AND f.state = 3 AND f.key = ANY(done.accepted);
  END IF;
  RETURN done.accepted;
END $$;

-- Jobs that completions carry ("f" is the key of the completed job) are created with them, if those are accepted.
CREATE OR REPLACE FUNCTION {schema}.create_events(given jsonb, accepted bigint[], at_ms bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  mine jsonb;
BEGIN
  IF given ? 'events' THEN
    SELECT jsonb_agg(e) INTO mine FROM jsonb_array_elements(given->'events'->'jobs') e
    WHERE (e->>'f')::bigint = ANY(accepted);
    IF mine IS NOT NULL THEN
      PERFORM create_jobs(given->'events' || jsonb_build_object('jobs', mine, 'now', at_ms));
    END IF;
  END IF;
END $$;
