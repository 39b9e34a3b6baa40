-- Purpose: accept one plain job that is due now: writes the same rows as create_jobs, in less time. If a worker waits
--   for it, the job is leased to that worker in the same transaction, as if the worker had activated it.
-- Inputs: the instant or NULL; the job, with limit key '' for none; the channel of wake-ups, NULL: nothing is sent.
-- Returns: the key; 0 if the type is not known, NULL if it has groups or a limit per key (in both cases, nothing is
--   written, and create_jobs must accept the job); whether a worker still has to be woken up; whether the job was
--   handed over.
-- Only for the engine's own sessions, which have the planner settings: setting them would cost as much as all rows.

CREATE OR REPLACE FUNCTION {schema}.create_one(given bigint, type_name text, whose text, what text, body text,
  given_priority smallint, given_max smallint, timeout bigint, header text, correlation text, more text, channel text,
  OUT new_key bigint, OUT is_awaited boolean, OUT is_handed boolean)
LANGUAGE plpgsql AS $$
DECLARE
  at_ms bigint := {schema}.now_ms(given);
  place record;
  message text;
BEGIN
  SELECT q.id AS queue, l.id AS lane, coalesce(given_max, t.max_attempts, {attempts_default}::smallint) AS max_attempts,
    EXISTS (SELECT 1 FROM {schema}.queue o WHERE o.type = type_name AND o.grp > '' AND NOT o.dropped)
      OR t.lane_max_running IS NOT NULL AS is_general,
    EXISTS (SELECT 1 FROM {schema}.registry r WHERE r.kind = '#idle' AND r.until_ms > at_ms) AS is_awaited, d.*
  INTO place
  FROM {schema}.type t JOIN {schema}.queue q ON q.type = t.name AND q.grp = ''
  LEFT JOIN {schema}.lane l ON l.queue_id = q.id AND l.tenant = whose AND l.limit_key = what
  LEFT JOIN LATERAL (
    SELECT p.token, p.receiver, p.until_ms, p.lease_ms, p.worker, p.secret FROM {schema}.parked p
    WHERE p.queue_id = q.id AND p.until_ms BETWEEN at_ms AND at_ms + {park_ms}
    ORDER BY p.until_ms DESC LIMIT 1) d ON channel IS NOT NULL AND NOT t.paused AND coalesce(t.breaker_failures_max,
      t.breaker_open_until_ms, t.max_running, t.rate_jobs) IS NULL
  WHERE t.name = type_name AND t.deleted_at_ms IS NULL;
  is_handed := false;
  is_awaited := coalesce(place.is_awaited, false);
  IF place.is_general IS NOT false THEN
    new_key := CASE WHEN place.is_general THEN NULL ELSE 0 END;
    RETURN;
  END IF;
  IF place.lane IS NULL THEN
    place.lane := {schema}.make_lane(place.queue, whose, what);
  END IF;
  -- While this create is in flight, no other create hands over a job ahead of it.
  PERFORM pg_advisory_xact_lock_shared({creating}, place.queue % {creating_locks});
  IF place.token IS NOT NULL
    AND octet_length(concat(body, header, correlation, more)) <= {handed_bytes_max}
    AND pg_try_advisory_xact_lock({notifying})
    AND NOT pg_try_advisory_xact_lock_shared({listening}, place.token)  -- Otherwise, the worker has disconnected.
  THEN
    new_key := {schema}.first_key(place.queue, at_ms);
    IF new_key IS NOT NULL THEN
      message := json_build_array(place.receiver, place.lane, new_key, 1, 1, place.max_attempts, type_name, '', whose,
        at_ms + place.lease_ms, body, header, given_priority, at_ms, at_ms, timeout, correlation, nullif(what, ''), more)::text;
      IF octet_length(message) < {message_bytes_max} THEN
        DELETE FROM {schema}.parked p WHERE p.ctid = ANY(ARRAY(
          SELECT x.ctid FROM {schema}.parked x WHERE x.queue_id = place.queue AND x.until_ms = place.until_ms
            AND x.token = place.token AND x.receiver = place.receiver
          LIMIT 1 FOR UPDATE SKIP LOCKED));
        is_handed := FOUND;
      END IF;
    END IF;
  END IF;
  new_key := coalesce(new_key, nextval('{schema}.job_key'));
  INSERT INTO {schema}.job (key, created_at_ms, timeout_ms, queue_id, lane_id, max_attempts, variables, headers,
    correlation_id, extra)
  VALUES (new_key, at_ms, timeout, place.queue, place.lane, place.max_attempts, body, header, correlation, more);
  IF is_handed THEN
    INSERT INTO {schema}.live (key, run_at_ms, activated_at_ms, lease_until_ms, queue_id, lane_id, attempt, state, rank,
      attempts, max_attempts, worker)
    VALUES (new_key, at_ms, at_ms, at_ms + place.lease_ms, place.queue, place.lane, 1, 2, -given_priority, 1,
      place.max_attempts, place.worker);
    INSERT INTO {schema}.count_delta (queue_id, tenant, processing) VALUES (place.queue, whose, 1);
    PERFORM pg_notify('everwork_' || place.secret, message);
    is_awaited := false;
  ELSE
    INSERT INTO {schema}.live (key, run_at_ms, queue_id, lane_id, state, rank, max_attempts)
    VALUES (new_key, at_ms, place.queue, place.lane, 1, -given_priority, place.max_attempts);
    INSERT INTO {schema}.count_delta (queue_id, tenant, pending) VALUES (place.queue, whose, 1);
    -- A transaction with a NOTIFY holds a database-wide lock until its commit is on disk. If another create holds it
    -- now, this job is announced separately.
    IF is_awaited AND channel IS NOT NULL AND pg_try_advisory_xact_lock({notifying}) THEN
      PERFORM pg_notify(channel, type_name);
      is_awaited := false;
    END IF;
  END IF;
END $$;

-- A new key, if the job with this key would be the first to be leased: nothing is ready or due, and no other create,
-- whose job might be committed first, is in flight. Later creates get higher keys. The lock makes them wait only during
-- this check, because the exception releases it.
CREATE OR REPLACE FUNCTION {schema}.first_key(queue int, at_ms bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  new_key bigint;
BEGIN
  IF pg_try_advisory_xact_lock({creating}, queue % {creating_locks}) THEN
    -- A separate statement, which sees everything that was committed before the lock was free.
    IF NOT EXISTS (SELECT 1 FROM {schema}.live j WHERE j.state = 1 AND j.queue_id = queue) AND NOT EXISTS (
      SELECT 1 FROM {schema}.live j WHERE j.state = 0 AND j.queue_id = queue AND j.run_at_ms <= at_ms) THEN
      new_key := nextval('{schema}.job_key');
    END IF;
    RAISE SQLSTATE 'EW001';
  END IF;
  RETURN NULL;
EXCEPTION WHEN SQLSTATE 'EW001' THEN
  RETURN new_key;
END $$;
