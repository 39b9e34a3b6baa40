-- Purpose: the circuit breakers of types, by the rules of core/breaker.py.
-- Inputs: jobs whose attempts have just ended, with their queues; the instant. Returns: whether a breaker was closed.

-- `done_queues` has each queue of the completions, `failed_queues` the queue of each counted failure. Types are locked
-- in the order of their names, so that two steps cannot deadlock. A success of a type without failures, and failures of
-- types without a breaker, write and lock nothing.
CREATE OR REPLACE FUNCTION {schema}.tell_breakers(done bigint[], done_queues int[], failed bigint[],
  failed_queues int[], at_ms bigint)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  found_type record;
  b record;
  is_closed boolean := false;
BEGIN
  FOR found_type IN
    SELECT t.name, c.is_done, c.failures FROM (
      SELECT q.type, bool_or(q.id = ANY(done_queues)) AS is_done,
        sum(cardinality(array_positions(failed_queues, q.id)))::int AS failures
      FROM queue q WHERE q.id = ANY(done_queues || failed_queues) GROUP BY q.type) c
    JOIN type t ON t.name = c.type
    WHERE CASE WHEN t.breaker_open_until_ms IS NOT NULL THEN t.breaker_probe_key = ANY(done || failed)
      ELSE c.is_done AND t.breaker_failures > 0 OR c.failures > 0 AND t.breaker_failures_max IS NOT NULL END
    ORDER BY t.name
  LOOP
    SELECT t.breaker_failures AS failures, t.breaker_open_until_ms AS until_ms, t.breaker_probe_key AS probe,
      t.breaker_probe_attempt AS attempt, t.breaker_failures_max AS most,
      coalesce(t.breaker_open_ms, {breaker_open_ms}) AS open_ms
    INTO b FROM type t WHERE t.name = found_type.name FOR UPDATE;
    IF found_type.is_done AND b.until_ms IS NULL THEN
      b.failures := 0;
    ELSIF b.probe = ANY(done) AND latest_attempt(b.probe) = b.attempt THEN
      b.failures := 0; b.until_ms := NULL; b.probe := NULL;
      is_closed := true;
    END IF;
    IF b.until_ms IS NULL AND b.most IS NOT NULL THEN
      b.failures := b.failures + found_type.failures;
      IF b.failures >= b.most THEN
        b.until_ms := at_ms + b.open_ms;
      END IF;
    ELSIF b.probe = ANY(failed) AND latest_attempt(b.probe) = b.attempt THEN
      b.until_ms := at_ms + b.open_ms; b.probe := NULL;
    END IF;
    UPDATE type t SET breaker_failures = b.failures, breaker_open_until_ms = b.until_ms, breaker_probe_key = b.probe
    WHERE t.name = found_type.name
      AND (t.breaker_failures, t.breaker_open_until_ms, t.breaker_probe_key)
        IS DISTINCT FROM (b.failures, b.until_ms, b.probe);
  END LOOP;
  RETURN is_closed;
END $$;

CREATE OR REPLACE FUNCTION {schema}.latest_attempt(job_key bigint) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
  RETURN coalesce((SELECT l.attempt FROM live l WHERE l.key = job_key),
    (SELECT f.attempt FROM job j CROSS JOIN LATERAL (
       SELECT a.attempt FROM finished a WHERE a.queue_id = j.queue_id AND a.state IN (3, 4) AND a.key = j.key LIMIT 1) f
     WHERE j.key = job_key));
END $$;

-- Report completions in users' own transactions, which breakers have not counted yet.
CREATE OR REPLACE FUNCTION {schema}.tell_repeated(given jsonb) RETURNS boolean LANGUAGE plpgsql {plan} AS $$
DECLARE
  keys bigint[];
  queues int[];
BEGIN
  WITH told AS (
    UPDATE finished f SET untold = NULL WHERE f.untold AND f.ctid = ANY(ARRAY(
      SELECT a.ctid FROM jsonb_array_elements_text(given->'keys') k
      CROSS JOIN LATERAL (SELECT j.key, j.queue_id FROM job j WHERE j.key = k::bigint LIMIT 1) j
      CROSS JOIN LATERAL (
        SELECT f.ctid FROM finished f WHERE f.queue_id = j.queue_id AND f.state = 3 AND f.key = j.key LIMIT 1) a))
    RETURNING f.key, f.queue_id)
  SELECT array_agg(t.key), array_agg(t.queue_id) INTO keys, queues FROM told t;
  RETURN keys IS NOT NULL AND tell_breakers(keys, queues, '{}', '{}', now_ms((given->>'now')::bigint));
END $$;
