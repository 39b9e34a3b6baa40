-- Purpose: write jobs as another store has dumped them, with their keys.
-- Inputs: an array of documents, see move.py; now. Returns: how many were new.

CREATE OR REPLACE FUNCTION {schema}.load_jobs(given jsonb, at_ms bigint) RETURNS int LANGUAGE plpgsql {plan} AS $$
DECLARE
  record jsonb;
  job jsonb;
  queue int;
  lane int;
  queues int[] := '{}';
  lanes int[] := '{}';
  head text[];
  last_head text[];
  loaded int := 0;
  highest bigint := 0;
BEGIN
  FOR record IN SELECT e FROM jsonb_array_elements(given) e LOOP
    job := record->'job';
    head := ARRAY[job->>'type', job->>'group', job->>'tenant', coalesce(job->>'limit_key', '')];
    IF head IS DISTINCT FROM last_head THEN
      PERFORM make_type(head[1]);
      INSERT INTO queue AS q (type, grp) VALUES (head[1], head[2])
      ON CONFLICT (type, grp) DO UPDATE SET dropped = false WHERE q.dropped;
      SELECT q.id INTO queue FROM queue q WHERE q.type = head[1] AND q.grp = head[2];
      SELECT l.id INTO lane FROM lane l WHERE l.queue_id = queue AND l.tenant = head[3] AND l.limit_key = head[4];
      IF NOT FOUND THEN
        lane := make_lane(queue, head[3], head[4]);
      END IF;
      queues := queues || queue;
      lanes := lanes || lane;
      last_head := head;
    END IF;
    INSERT INTO job (key, created_at_ms, expires_at_ms, timeout_ms, copy_of, queue_id, lane_id, max_attempts, variables,
      headers, dedupe_key, correlation_id, retry, extra, rounds)
    VALUES ((job->>'key')::bigint, (job->>'created_at_ms')::bigint, (job->>'expires_at_ms')::bigint,
      (job->>'timeout_ms')::bigint, (job->>'copy_of')::bigint, queue, lane, (record->>'created_max_attempts')::smallint,
      job->>'variables', job->>'headers', job->>'dedupe_key', job->>'correlation_id', record->>'retry', job->>'extra',
      (record->>'rounds')::smallint)
    ON CONFLICT DO NOTHING;
    CONTINUE WHEN NOT FOUND;
    loaded := loaded + 1;
    PERFORM load_place(record, queue, lane, at_ms);
    highest := greatest(highest, (job->>'key')::bigint);
  END LOOP;
  -- setval and not repeated nextval: the loaded keys may be very high.
  PERFORM setval('job_key', highest) FROM job_key s WHERE s.last_value < highest;
  PERFORM note_open_lanes(queues, lanes);
  RETURN loaded;
END $$;

CREATE OR REPLACE FUNCTION {schema}.load_place(record jsonb, queue int, lane int, at_ms bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  job jsonb := record->'job';
  job_key bigint := (record->'job'->>'key')::bigint;
  state int := (record->'job'->>'state')::int;
BEGIN
  IF state <= 2 THEN
    INSERT INTO live (key, run_at_ms, expires_at_ms, activated_at_ms, lease_until_ms, queue_id, lane_id, attempt, state,
      rank, attempts, max_attempts, worker)
    VALUES (job_key, (job->>'run_at_ms')::bigint, (job->>'expires_at_ms')::bigint, (job->>'activated_at_ms')::bigint,
      (job->>'lease_until_ms')::bigint, queue, lane, (job->>'attempt')::int,
      CASE WHEN state = 2 THEN 2 WHEN (job->>'run_at_ms')::bigint > at_ms THEN 0 ELSE 1 END,
      -(job->>'priority')::smallint, (job->>'attempts')::smallint, (job->>'max_attempts')::smallint, job->>'worker');
  ELSE
    INSERT INTO finished (key, run_at_ms, finished_at_ms, activated_at_ms, queue_id, lane_id, attempt, state, rank,
      attempts, max_attempts, worker, kind, error, code)
    VALUES (job_key, (job->>'run_at_ms')::bigint, (job->>'finished_at_ms')::bigint, (job->>'activated_at_ms')::bigint,
      queue, lane, (job->>'attempt')::int, state, -(job->>'priority')::smallint, (job->>'attempts')::smallint,
      (job->>'max_attempts')::smallint, job->>'worker', record->>'kind', job->>'last_error', job->>'error_code');
    UPDATE queue q SET back_at_ms = (job->>'finished_at_ms')::bigint - 1, back_key = 0
    WHERE state = 4 AND q.id = queue AND q.back_at_ms >= (job->>'finished_at_ms')::bigint;
  END IF;
  IF state = 2 THEN  -- Claims that count running jobs must not skip it.
    UPDATE gate g SET low_key = 0, counted_at_ms = 0 WHERE g.queue_id = queue;
  END IF;
  INSERT INTO result (key, body) SELECT job_key, job->>'result' WHERE job->>'result' IS NOT NULL;
  IF record->'history' <> '[]' THEN
    INSERT INTO history (key, attempt, step, kind, at_ms, worker, error, activated_at_ms, retry_at_ms, traceback)
    SELECT job_key, x.attempt, x.step, x.kind, x.at_ms, x.worker, x.error, x.activated_at_ms, x.retry_at_ms, x.traceback
    FROM jsonb_to_recordset(record->'history') AS x(attempt int, step smallint, kind text, at_ms bigint, worker text,
      error text, activated_at_ms bigint, retry_at_ms bigint, traceback text);
  END IF;
  INSERT INTO dedupe (type, tenant, dedupe_key, key)
  SELECT job->>'type', job->>'tenant', job->>'dedupe_key', job_key
  WHERE job->>'dedupe_key' IS NOT NULL AND job->>'copy_of' IS NULL ON CONFLICT DO NOTHING;
  INSERT INTO count_delta (queue_id, tenant, pending, processing, completed, failed, cancelled)
  VALUES (queue, job->>'tenant', (state = 1)::int, (state = 2)::int, (state = 3)::int, (state = 4)::int,
    (state = 5)::int);
END $$;
