-- Purpose: list types; delete one on request, or those that are unused.
-- Inputs: types and instants. Returns: see each function.
--
-- A create reads the queues of its type without a lock and writes jobs that refer to them. So that no job is lost, a
-- type is deleted in two steps. delete_type marks its row as deleted; make_type can turn it into a new type. Later,
-- purge_types deletes the rows, once every transaction that may have read them before the mark has ended. If one of
-- these has created a job, the type exists again.

-- Every type, by name. Indexes are used even while the tables have no statistics: they may grow fast.
CREATE OR REPLACE FUNCTION {schema}.list_types(at_ms bigint)
RETURNS TABLE (name text, paused boolean, policy text, groups text[], asked_at_ms bigint, rate_full_until_ms bigint,
  breaker_failures int, breaker_open_until_ms bigint, breaker_probe_key bigint, is_probe_live boolean, now_ms bigint)
LANGUAGE sql STABLE {plan} AS $$
  SELECT t.name, t.paused, t.policy, q.groups, q.asked_at_ms,
    CASE WHEN t.rate_jobs IS NOT NULL THEN (
      SELECT max(g.since_ms + t.rate_ms) FROM queue x JOIN gate g ON g.queue_id = x.id
      WHERE x.type = t.name AND g.started >= t.rate_jobs AND abs(at_ms - g.since_ms) < t.rate_ms) END,
    t.breaker_failures, t.breaker_open_until_ms, t.breaker_probe_key,
    t.breaker_probe_key IS NOT NULL AND EXISTS (SELECT 1 FROM live a
      WHERE a.key = t.breaker_probe_key AND a.attempt = t.breaker_probe_attempt AND a.state + 0 = 2),
    at_ms
  FROM type t CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(x.grp ORDER BY x.grp) FILTER (WHERE x.grp <> '' AND NOT x.dropped), '{}') AS groups,
      max(x.asked_at_ms) AS asked_at_ms FROM queue x WHERE x.type = t.name) q
  WHERE t.deleted_at_ms IS NULL ORDER BY t.name
$$;

CREATE OR REPLACE FUNCTION {schema}.has_jobs(queues int[]) RETURNS boolean LANGUAGE plpgsql {plan} AS $$
DECLARE
  queue int;
BEGIN
  FOREACH queue IN ARRAY queues LOOP
    IF EXISTS (SELECT 1 FROM live j WHERE j.queue_id = queue AND j.state = 0)
      OR EXISTS (SELECT 1 FROM live j WHERE j.queue_id = queue AND j.state = 1)
      OR EXISTS (SELECT 1 FROM live j WHERE j.queue_id = queue AND j.state = 2)
      OR EXISTS (SELECT 1 FROM finished f WHERE f.queue_id = queue) THEN
      RETURN true;
    END IF;
  END LOOP;
  RETURN false;
END $$;

-- The hours that may have statistics. Work and measures are folded at different times.
CREATE OR REPLACE FUNCTION {schema}.kept_hours() RETURNS int[] LANGUAGE sql {plan} AS $$
  SELECT ARRAY(SELECT generate_series(
    least((SELECT w.hour FROM work_hour w ORDER BY w.hour, w.queue_id, w.worker LIMIT 1),
      (SELECT m.hour FROM measure_hour m ORDER BY m.hour, m.queue_id, m.what LIMIT 1)),
    greatest((SELECT w.hour FROM work_hour w ORDER BY w.hour DESC, w.queue_id DESC, w.worker DESC LIMIT 1),
      (SELECT m.hour FROM measure_hour m ORDER BY m.hour DESC, m.queue_id DESC, m.what DESC LIMIT 1))))
$$;

CREATE OR REPLACE FUNCTION {schema}.has_statistics(queues int[]) RETURNS boolean LANGUAGE sql {plan} AS $$
  SELECT EXISTS (SELECT 1 FROM work_delta d WHERE d.queue_id = ANY(queues))
    OR EXISTS (SELECT 1 FROM unnest(kept_hours()) AS h(hour) CROSS JOIN unnest(queues) AS q(id) CROSS JOIN LATERAL (
      SELECT 1 FROM work_hour w WHERE w.hour = h.hour AND w.queue_id = q.id LIMIT 1) s)
$$;

-- With unused_ms NULL, deletes on request; otherwise, only if the type is unused and its policy is seen_policy.
-- Returns 'accepted', 'not found' or 'wrong state'.
CREATE OR REPLACE FUNCTION {schema}.delete_type(type_name text, seen_policy text, unused_ms bigint, at_ms bigint)
RETURNS text LANGUAGE plpgsql {plan} SET lock_timeout = {lock_timeout} AS $$
DECLARE
  found_type record;
  queues int[];
  asked bigint;
  hours int[];
BEGIN
  SELECT t.policy, t.paused OR t.breaker_open_until_ms IS NOT NULL AS is_set_up INTO found_type
  FROM type t WHERE t.name = type_name AND t.deleted_at_ms IS NULL FOR UPDATE;
  IF NOT FOUND THEN
    RETURN 'not found';
  END IF;
  SELECT array_agg(q.id), max(q.asked_at_ms) INTO queues, asked
  FROM (SELECT x.id, x.asked_at_ms FROM queue x WHERE x.type = type_name FOR UPDATE SKIP LOCKED) q;
  IF coalesce(cardinality(queues), 0) < (SELECT count(*) FROM queue q WHERE q.type = type_name) THEN
    RETURN 'wrong state';  -- An uncommitted transaction uses it.
  END IF;
  IF unused_ms IS NOT NULL AND (found_type.policy IS DISTINCT FROM seen_policy OR found_type.is_set_up
    OR asked > at_ms - unused_ms
    OR EXISTS (SELECT 1 FROM queue q WHERE q.type = type_name AND q.grp <> '' AND NOT q.dropped)
    OR EXISTS (SELECT 1 FROM registry r WHERE r.kind = 'owner' AND r.name = type_name)) THEN
    RETURN 'wrong state';
  END IF;
  IF has_jobs(queues) OR (unused_ms IS NOT NULL AND asked IS NOT NULL AND has_statistics(queues)) THEN
    RETURN 'wrong state';
  END IF;
  IF unused_ms IS NULL THEN
    hours := kept_hours();
    DELETE FROM work_hour w WHERE w.hour = ANY(hours) AND w.queue_id = ANY(queues);
    DELETE FROM measure_hour m WHERE m.hour = ANY(hours) AND m.queue_id = ANY(queues);
    DELETE FROM work_delta w WHERE w.queue_id = ANY(queues);
    DELETE FROM measure_delta m WHERE m.queue_id = ANY(queues);
  END IF;
  DELETE FROM gate g WHERE g.queue_id = ANY(queues);
  DELETE FROM registry r WHERE r.kind = 'owner' AND r.name = type_name;
  UPDATE queue q SET dropped = q.grp <> '', asked_at_ms = NULL, back_at_ms = 0, back_key = 0 WHERE q.id = ANY(queues);
  UPDATE type t SET deleted_at_ms = at_ms, deleted_xid = NULL, paused = false, policy = NULL, max_attempts = NULL,
    max_running = NULL, lane_max_running = NULL, rate_jobs = NULL, rate_ms = NULL, requeue_ms = NULL,
    requeue_rounds = NULL, keep_completed_ms = NULL, keep_failed_ms = NULL, breaker_failures = 0,
    breaker_open_until_ms = NULL, breaker_probe_key = NULL, breaker_probe_attempt = NULL, breaker_failures_max = NULL,
    breaker_open_ms = NULL
  WHERE t.name = type_name;
  RETURN 'accepted';
END $$;

-- Deletes the rows of at most `most` types; returns how many.
-- A transaction that read a queue before the mark gets its xid with its first write, in the same call, so a minute
-- later it has one. deleted_xid is assigned after that minute. Once every running transaction has a higher xid, and
-- every snapshot is newer, all of them have ended.
CREATE OR REPLACE FUNCTION {schema}.purge_types(at_ms bigint, most int) RETURNS int LANGUAGE plpgsql {plan} AS $$
DECLARE
  own bigint := pg_current_xact_id()::text::bigint;
  oldest bigint := oldest_xid();
  gone record;
  queues int[];
  purged int := 0;
BEGIN
  FOR gone IN SELECT t.name FROM type t WHERE t.deleted_xid < oldest ORDER BY t.name LIMIT most
    FOR UPDATE SKIP LOCKED LOOP
    queues := ARRAY(SELECT q.id FROM queue q WHERE q.type = gone.name);
    IF has_jobs(queues) THEN
      UPDATE type t SET deleted_at_ms = NULL, deleted_xid = NULL WHERE t.name = gone.name;
    ELSE
      DELETE FROM count_total c WHERE c.queue_id = ANY(queues);
      DELETE FROM count_delta c WHERE c.queue_id = ANY(queues);
      DELETE FROM lane l WHERE l.queue_id = ANY(queues);
      DELETE FROM open_lane o WHERE o.queue_id = ANY(queues);
      DELETE FROM open_lane_delta x WHERE x.queue_id = ANY(queues);
      DELETE FROM queue q WHERE q.id = ANY(queues);
      DELETE FROM type t WHERE t.name = gone.name;
    END IF;
    purged := purged + 1;
  END LOOP;
  UPDATE type t SET deleted_xid = own WHERE t.deleted_at_ms <= at_ms - 60000 AND t.deleted_xid IS NULL;
  RETURN purged;
END $$;
