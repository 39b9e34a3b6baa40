-- Purpose: write how attempts ended that were not completed: released, or as the core has decided.
-- Inputs: documents; each function describes its own. Returns: the keys that passed the guard.

-- Releases: {"key": attempt, ...} (attempt 0: not checked).
CREATE OR REPLACE FUNCTION {schema}.release_jobs(back jsonb, at_ms bigint) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
  accepted bigint[];
  queues int[];
  lanes int[];
BEGIN
  WITH held AS MATERIALIZED (
    SELECT j.key, j.attempt, j.worker, j.activated_at_ms FROM live j
    WHERE j.key = ANY(ARRAY(SELECT k::bigint FROM jsonb_object_keys(back) k)) AND j.state + 0 = 2
      AND (back->>(j.key::text))::int IN (j.attempt, 0)
    ORDER BY j.key FOR UPDATE),
  returned AS (
    UPDATE live j SET state = CASE WHEN j.run_at_ms > at_ms THEN 0 ELSE 1 END, attempts = j.attempts - 1,
      lease_until_ms = NULL, activated_at_ms = at_ms, worker = NULL
    WHERE j.key = ANY(ARRAY(SELECT h.key FROM held h)) RETURNING j.key, j.queue_id, j.lane_id),
  recorded AS (
    INSERT INTO history (key, attempt, step, kind, at_ms, worker, activated_at_ms)
    SELECT h.key, h.attempt, 0, 'release', at_ms, h.worker, h.activated_at_ms FROM held h),
  counted AS (
    INSERT INTO count_delta (queue_id, tenant, processing, pending)
    SELECT l.queue_id, l.tenant, -count(*), count(*) FROM returned r JOIN lane l ON l.id = r.lane_id GROUP BY 1, 2)
  SELECT array_agg(r.key), array_agg(r.queue_id), array_agg(r.lane_id) INTO accepted, queues, lanes FROM returned r;
  PERFORM note_open_lanes(queues, lanes);
  DELETE FROM history h WHERE h.key = ANY(accepted)
    AND h.attempt <= (SELECT j.attempt FROM live j WHERE j.key = h.key) - {history_max};
  RETURN coalesce(accepted, '{}');
END $$;

-- What the core has decided: {"key": {"a": attempt, "n": attempts and "m": max_attempts that it knew,
--   "s": 1 pending or 4 failed, "b": backoff, "x": new max_attempts, "i": kind, "e": error, "c": code,
--   "v": new variables and "k": the traceback, if there are any, "f": if a breaker counts it,
--   "t": the kind of failure, if the client knows it}, ...}.
-- `lapsed`: only expired leases may end this way. Jobs that are being settled at the moment, perhaps in a user's long
-- transaction, are skipped, and so are leases that were promised to hold, see extend.sql. How long the attempts ran is
-- unknown, and not measured.
-- If attempts or max_attempts have changed meanwhile, the guard fails and the caller decides again.
-- Returns also the keys that breakers count, and the queue of each.
CREATE OR REPLACE FUNCTION {schema}.end_attempts(ended jsonb, lapsed boolean, at_ms bigint, OUT accepted bigint[],
  OUT failed bigint[], OUT queues int[])
LANGUAGE plpgsql AS $$
DECLARE
  keys bigint[] := ARRAY(SELECT k::bigint FROM jsonb_object_keys(ended) k);
  opened_queues int[];
  opened_lanes int[];
BEGIN
  IF lapsed THEN
    PERFORM pg_advisory_xact_lock_shared(lapse_gate());
    keys := ARRAY(SELECT j.key FROM live j WHERE j.key = ANY(keys) AND j.state + 0 = 2 AND j.lease_until_ms <= at_ms
      AND NOT is_promised(j.key, j.attempt, at_ms)
      ORDER BY j.key FOR UPDATE SKIP LOCKED);
  END IF;
  WITH held AS MATERIALIZED (
    SELECT j.*, ended->(j.key::text) AS o FROM live j
    WHERE j.key = ANY(keys) AND j.state + 0 = 2
      AND j.attempt = (ended->(j.key::text)->>'a')::int AND j.attempts = (ended->(j.key::text)->>'n')::int
      AND j.max_attempts = (ended->(j.key::text)->>'m')::int
    ORDER BY j.key FOR UPDATE),
  retried AS (
    UPDATE live j SET state = CASE WHEN (ended->(j.key::text)->>'b')::bigint > 0 THEN 0 ELSE 1 END,
      run_at_ms = at_ms + (ended->(j.key::text)->>'b')::bigint, max_attempts = (ended->(j.key::text)->>'x')::smallint,
      lease_until_ms = NULL, activated_at_ms = at_ms, worker = NULL
    WHERE j.key = ANY(ARRAY(SELECT h.key FROM held h WHERE h.o->>'s' = '1')) RETURNING j.key),
  gone AS (
    DELETE FROM live j WHERE j.key = ANY(ARRAY(SELECT h.key FROM held h WHERE h.o->>'s' = '4')) RETURNING j.key),
  kept AS (
    INSERT INTO finished (key, run_at_ms, finished_at_ms, activated_at_ms, queue_id, lane_id, attempt, state, rank,
      attempts, max_attempts, worker, kind, error, code)
    SELECT h.key, h.run_at_ms, at_ms, h.activated_at_ms, h.queue_id, h.lane_id, h.attempt, 4, h.rank, h.attempts,
      (h.o->>'x')::smallint, h.worker, h.o->>'i', h.o->>'e', h.o->>'c'
    FROM held h WHERE h.o->>'s' = '4'),
  recorded AS (
    INSERT INTO history (key, attempt, step, kind, at_ms, worker, error, activated_at_ms, retry_at_ms,
      traceback, due_at_ms, attempts)
    SELECT h.key, h.attempt, 0, h.o->>'i', at_ms, h.worker, h.o->>'e', h.activated_at_ms,
      CASE WHEN h.o->>'s' = '1' THEN at_ms + (h.o->>'b')::bigint END, h.o->>'k',
      -- What functions/reclaim.sql needs to undo a lapse; it knows the kind under which this one is counted.
      CASE WHEN h.o->>'t' = {lapsed} THEN h.run_at_ms END, CASE WHEN h.o->>'t' = {lapsed} THEN h.attempts END
    FROM held h),
  counted AS (
    INSERT INTO count_delta (queue_id, tenant, processing, pending, failed)
    SELECT l.queue_id, l.tenant, -count(*), count(*) FILTER (WHERE h.o->>'s' = '1'),
      count(*) FILTER (WHERE h.o->>'s' = '4')
    FROM held h JOIN lane l ON l.id = h.lane_id GROUP BY 1, 2),
  worked AS (
    INSERT INTO work_delta (hour, queue_id, worker, failed, retried, execution_ms, wait_ms)
    SELECT at_ms / 3600000, h.queue_id, h.worker, count(*) FILTER (WHERE h.o->>'s' = '4'),
      count(*) FILTER (WHERE h.o->>'s' = '1'),
      CASE WHEN lapsed THEN 0 ELSE sum(greatest(0, at_ms - h.activated_at_ms)) END,
      sum(greatest(0, h.activated_at_ms - h.run_at_ms)) FROM held h GROUP BY 2, 3),
  measured AS (
    INSERT INTO measure_delta (hour, queue_id, jobs, execution, wait, sort)
    SELECT at_ms / 3600000, h.queue_id, count(*),
      CASE WHEN lapsed THEN {no_bucket} ELSE bucket_of(at_ms - h.activated_at_ms) END,
      bucket_of(h.activated_at_ms - h.run_at_ms), coalesce(h.o->>'t', {unclassified}) FROM held h GROUP BY 2, 4, 5, 6)
  SELECT coalesce(array_agg(h.key), '{}'), coalesce(array_agg(h.key) FILTER (WHERE h.o ? 'f'), '{}'),
    coalesce(array_agg(h.queue_id) FILTER (WHERE h.o ? 'f'), '{}'), array_agg(h.queue_id), array_agg(h.lane_id)
  INTO accepted, failed, queues, opened_queues, opened_lanes FROM held h;
  PERFORM note_open_lanes(opened_queues, opened_lanes);
  UPDATE job j SET variables = ended->(j.key::text)->>'v'
  WHERE j.key = ANY(ARRAY(SELECT k FROM unnest(accepted) k WHERE ended->(k::text) ? 'v'));
  DELETE FROM history h WHERE h.key = ANY(accepted) AND h.attempt <= (ended->(h.key::text)->>'a')::int - {history_max};
END $$;
