-- Purpose: accept jobs, all or none, in the caller's transaction.
-- Inputs: one document {"now": instant or null, "heads": [[type, tenant, limit key or ""], ...],
--   "jobs": [{"h": number of its head, from 1, "v": variables; and what is not as usual: "p": priority, "d": delay_ms,
--     "r": run_at_ms, "m": max_attempts, "k": dedupe_key, "l": limit_key, "c": correlation_id, "e": expires_at_ms,
--     "t": timeout_ms, "b": headers, "y": retry, "x": extra, "f": the key of the completion that carries it}, ...],
--   "dedupe": true if any job has a dedupe_key, "stamp": [producer, number] if the call may be repeated}.
-- Returns: the new keys of the jobs; the keys to return, an earlier job's where the dedupe key is known; whether a
--   worker waits for work. A call that is repeated is rolled back with the message 'repeated'.

CREATE OR REPLACE FUNCTION {schema}.create_jobs(given jsonb, OUT fresh bigint[], OUT keys bigint[],
  OUT is_awaited boolean)
LANGUAGE plpgsql {plan} AS $$
<<creating>>
DECLARE
  at_ms bigint := now_ms((given->>'now')::bigint);
  head jsonb;
  found_type record;
  found_queue record;
  lane int;
  types text[] := '{}';
  tenants text[] := '{}';
  attempts smallint[] := '{}';  -- For each head: the max_attempts of its jobs,
  firsts int[] := '{}';         -- and where its lanes begin and end in the two arrays below: one for each group.
  lasts int[] := '{}';
  queues int[] := '{}';
  lanes int[] := '{}';
  is_limited boolean := false;  -- Whether claims may visit only open lanes.
  stamp jsonb := given->'stamp';
  producer_id text;
  number bigint;
  answer bigint[];  -- What the producer gets again if it repeats the call.
BEGIN
  FOR head IN SELECT e FROM jsonb_array_elements(given->'heads') e LOOP
    SELECT t.max_attempts, t.lane_max_running INTO found_type FROM type t
    WHERE t.name = head->>0 AND t.deleted_at_ms IS NULL;
    IF NOT FOUND THEN
      PERFORM make_type(head->>0);
      SELECT t.max_attempts, t.lane_max_running INTO found_type FROM type t WHERE t.name = head->>0;
    END IF;
    types := types || (head->>0);
    is_limited := is_limited OR found_type.lane_max_running IS NOT NULL;
    tenants := tenants || (head->>1);
    attempts := attempts || coalesce(found_type.max_attempts, {attempts_default}::smallint);
    firsts := firsts || cardinality(queues) + 1;
    FOR found_queue IN SELECT q.id FROM queue q WHERE q.type = head->>0 AND NOT q.dropped ORDER BY q.grp LOOP
      SELECT l.id INTO lane FROM lane l
      WHERE l.queue_id = found_queue.id AND l.tenant = head->>1 AND l.limit_key = head->>2;
      IF NOT FOUND THEN
        lane := make_lane(found_queue.id, head->>1, head->>2);
      END IF;
      IF found_queue.id IS DISTINCT FROM queues[cardinality(queues)] THEN  -- Before the keys: see create_one.sql.
        PERFORM pg_advisory_xact_lock_shared({creating}, found_queue.id % {creating_locks});
      END IF;
      queues := queues || found_queue.id;
      lanes := lanes || lane;
    END LOOP;
    lasts := lasts || cardinality(queues);
  END LOOP;

  fresh := ARRAY(SELECT nextval('job_key') FROM generate_series(1, jsonb_array_length(given->'jobs')));
  keys := fresh;
  IF given ? 'dedupe' THEN
    keys := claim_dedupe(given->'jobs', types, tenants, fresh);
  END IF;

  WITH one AS MATERIALIZED (
    SELECT fresh[x.n] AS key, x.*
    FROM ROWS FROM (jsonb_to_recordset(given->'jobs') AS (h int, v text, p smallint, d bigint, r bigint, m smallint,
      k text, c text, e bigint, t bigint, b text, y text, x text))
      WITH ORDINALITY AS x(h, v, p, d, r, m, k, c, e, t, b, y, x, n)
    WHERE fresh[x.n] = keys[x.n]),
  copy AS MATERIALIZED (
    SELECT CASE WHEN g.n = firsts[o.h] THEN o.key ELSE nextval('job_key') END AS key,
      CASE WHEN g.n > firsts[o.h] THEN o.key END AS copy_of,
      queues[g.n] AS queue_id, lanes[g.n] AS lane_id, (-coalesce(o.p, 0))::smallint AS rank,
      coalesce(o.r, at_ms + coalesce(o.d, 0)) AS run_at_ms, coalesce(o.m, attempts[o.h]) AS max_attempts,
      o.v, o.k, o.c, o.e, o.t, o.b, o.y, o.x
    FROM one o CROSS JOIN LATERAL generate_series(firsts[o.h], lasts[o.h]) AS g(n)),
  kept AS (
    INSERT INTO job (key, created_at_ms, expires_at_ms, timeout_ms, copy_of, queue_id, lane_id, max_attempts, variables,
      headers, dedupe_key, correlation_id, retry, extra)
    SELECT c.key, at_ms, c.e, c.t, c.copy_of, c.queue_id, c.lane_id, c.max_attempts, c.v, c.b,
      CASE WHEN c.copy_of IS NULL THEN c.k END, c.c, c.y, c.x FROM copy c),
  placed AS (
    INSERT INTO live (key, run_at_ms, expires_at_ms, queue_id, lane_id, state, rank, max_attempts)
    SELECT c.key, c.run_at_ms, c.e, c.queue_id, c.lane_id,
      CASE WHEN c.run_at_ms > at_ms THEN 0 ELSE 1 END, c.rank, c.max_attempts
    FROM copy c RETURNING lane_id)
  INSERT INTO count_delta (queue_id, tenant, pending)
  SELECT l.queue_id, l.tenant, sum(p.n) FROM (SELECT lane_id, count(*) AS n FROM placed GROUP BY 1) p
  JOIN lane l ON l.id = p.lane_id GROUP BY 1, 2;
  IF is_limited THEN
    PERFORM note_open_lanes(queues, lanes);
  END IF;
  IF stamp IS NOT NULL THEN
    producer_id := stamp->>0;
    number := stamp->>1;
    answer := create_jobs.keys;
    IF given ? 'dedupe' THEN
      answer := signed_keys(create_jobs.fresh, create_jobs.keys);
    END IF;
    -- Only variables: what an UPDATE has to compute is made ready at every execution.
    UPDATE producer p SET number = creating.number, at_ms = creating.at_ms, keys = answer
    WHERE p.id = producer_id AND p.number < creating.number;
    IF NOT FOUND THEN
      INSERT INTO producer (id, number, at_ms, keys)
      VALUES (producer_id, creating.number, creating.at_ms, answer) ON CONFLICT DO NOTHING;
      IF NOT FOUND THEN
        RAISE EXCEPTION 'repeated';  -- Nothing is created; the client reads what was returned then.
      END IF;
    END IF;
  END IF;
  is_awaited := EXISTS (SELECT 1 FROM registry r WHERE r.kind = '#idle' AND r.until_ms > at_ms);
END $$;

-- The first writer of (type, tenant, dedupe key) wins; this waits for one that has not committed yet.
CREATE OR REPLACE FUNCTION {schema}.claim_dedupe(jobs jsonb, types text[], tenants text[], fresh bigint[])
RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
  keys bigint[];
BEGIN
  FOR round IN 1..10 LOOP
    INSERT INTO dedupe (type, tenant, dedupe_key, key)
    SELECT types[x.h], tenants[x.h], x.k, min(fresh[x.n])
    FROM ROWS FROM (jsonb_to_recordset(jobs) AS (h int, k text)) WITH ORDINALITY AS x(h, k, n)
    WHERE x.k IS NOT NULL GROUP BY 1, 2, 3 ORDER BY 1, 2, 3 ON CONFLICT DO NOTHING;
    keys := ARRAY(
      SELECT CASE WHEN x.k IS NULL THEN fresh[x.n]
        ELSE (SELECT d.key FROM dedupe d
          WHERE d.type = types[x.h] AND d.tenant = tenants[x.h] AND d.dedupe_key = x.k) END
      FROM ROWS FROM (jsonb_to_recordset(jobs) AS (h int, k text)) WITH ORDINALITY AS x(h, k, n) ORDER BY x.n);
    -- NULL: it was deleted with its job between the two statements.
    IF array_position(keys, NULL) IS NULL THEN
      RETURN keys;
    END IF;
  END LOOP;
  RAISE serialization_failure USING MESSAGE = 'dedupe keys come and go too fast';
END $$;

-- Keys to return, negative where an earlier job's is returned.
CREATE OR REPLACE FUNCTION {schema}.signed_keys(fresh bigint[], keys bigint[]) RETURNS bigint[]
LANGUAGE sql IMMUTABLE AS $$
  SELECT array_agg(CASE WHEN o.new = o.key THEN o.key ELSE -o.key END ORDER BY o.n)
  FROM unnest(fresh, keys) WITH ORDINALITY AS o(new, key, n)
$$;
