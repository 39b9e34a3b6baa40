-- Purpose: in one step, settle, promote what is due, and lease the first jobs of each lane in the order of G9.
-- Inputs: one document {
--   "now": instant or null,
--   "v": 2 from clients that understand the notes 'room' and 'due',
--   "done", "back", "ended", "lapsed", "events": see complete.sql and settle.sql,
--   "claims": [{"t": type, "g": group, "n": limit, "w": workers, "l": their lease_ms,
--     "d": how many jobs each worker gets, in their order; null if there is one worker,
--     "i": tenants or null, "c": the lane after which turns begin,
--     "m": [rank, run_at, key] to begin behind, or null, "o": the claim's number,
--     "p": the demand to park, see park.sql, or null}, ...]}.
-- Returns: leased jobs, all columns set; and notes, whose attempt is NULL and whose `type` is their kind:
--   'refused': key is a key that did not pass the guard.
--   'room': other workers may find work now.
--   'due': lease_until_ms is when the next claim may find what is held back.
--   'claim': ends a claim; max_attempts is its number, key the last lane visited, lease_until_ms when the next claim
--     may find more, created_at_ms how many index entries the claim read.
--   'now': the last row; key is the engine's now, attempts 1 if a process waits for results, max_attempts 1 if a worker
--     waits for work.

CREATE OR REPLACE FUNCTION {schema}.note(what text, number bigint, one int DEFAULT NULL, other int DEFAULT NULL,
  due_ms bigint DEFAULT NULL, entries bigint DEFAULT NULL)
RETURNS SETOF {schema}.leased LANGUAGE sql IMMUTABLE AS $$
  SELECT number, NULL::int, one::smallint, other::smallint, what, NULL, NULL, due_ms, NULL, NULL, NULL::smallint,
    NULL::bigint, entries, NULL::bigint, NULL, NULL, NULL
$$;

CREATE OR REPLACE FUNCTION {schema}.step(given jsonb)
RETURNS SETOF {schema}.leased
LANGUAGE plpgsql {plan} SET lock_timeout = {lock_timeout} AS $$
#variable_conflict use_column
DECLARE
  at_ms bigint := now_ms((given->>'now')::bigint);
  keys bigint[];
  done bigint[] := '{}';
  done_queues int[] := '{}';
  accepted bigint[] := '{}';
  ended bigint[] := '{}';
  failed bigint[] := '{}';
  failed_queues int[] := '{}';
  is_watched boolean := false;
  is_roomy boolean := false;
  is_waited boolean;
  is_idle boolean;
  claim record;
  whom int[];
  found_queue record;
  entries bigint;
  got int;
BEGIN
  IF given ? 'done' THEN
    SELECT c.accepted, c.queues, c.is_watched, c.is_limited INTO done, done_queues, is_watched, is_roomy
    FROM complete_jobs(given->'done', at_ms) c;
    accepted := done;
    PERFORM create_events(given, accepted, at_ms);
  END IF;
  IF given ? 'back' THEN
    accepted := accepted || release_jobs(given->'back', at_ms);
  END IF;
  IF given ? 'ended' THEN
    SELECT e.accepted, e.failed, e.queues INTO ended, failed, failed_queues
    FROM end_attempts(given->'ended', given ? 'lapsed', at_ms) e;
    accepted := accepted || ended;
  END IF;
  -- After every job of this step is locked: no transaction that holds a breaker waits for a job.
  IF is_watched OR failed <> '{}' THEN
    is_roomy := tell_breakers(done, done_queues, failed, failed_queues, at_ms) OR is_roomy;
  END IF;
  IF is_roomy AND given ? 'v' THEN
    RETURN QUERY SELECT * FROM note('room', 0);
  END IF;
  keys := ARRAY(SELECT k::bigint FROM jsonb_object_keys(
    coalesce(given->'done', '{}') || coalesce(given->'back', '{}') || coalesce(given->'ended', '{}')) k);
  IF cardinality(keys) > cardinality(accepted) THEN
    RETURN QUERY SELECT n.* FROM (SELECT unnest(keys) AS k EXCEPT SELECT unnest(accepted)) r
      CROSS JOIN LATERAL note('refused', r.k) n;
  END IF;

  FOR claim IN SELECT * FROM jsonb_to_recordset(given->'claims')
    AS x(t text, g text, n int, w text[], l bigint[], d int[], i text[], c int, m jsonb, o smallint, p jsonb) LOOP
    FOR round IN 1..2 LOOP
      SELECT q.id, q.solo_lane, q.fair, q.asked_at_ms, t.paused,
        coalesce(t.breaker_open_until_ms, t.max_running, t.lane_max_running, t.rate_jobs) IS NOT NULL AS held,
        q.fair AND t.lane_max_running IS NOT NULL AS by_open_lanes
      INTO found_queue FROM queue q JOIN type t ON t.name = q.type
      WHERE q.type = claim.t AND q.grp = claim.g AND NOT q.dropped AND t.deleted_at_ms IS NULL;
      EXIT WHEN FOUND OR round = 2;
      PERFORM make_type(claim.t);
    END LOOP;
    CONTINUE WHEN found_queue.id IS NULL;  -- A group that is not registered is empty.
    IF found_queue.asked_at_ms IS NULL OR at_ms - found_queue.asked_at_ms NOT BETWEEN 0 AND {asked_every_ms} THEN
      -- A concurrent claim writes the same instant: there is no need to wait for its lock.
      UPDATE queue q SET asked_at_ms = at_ms
      WHERE q.id = (SELECT q.id FROM queue q WHERE q.id = found_queue.id FOR UPDATE SKIP LOCKED);
    END IF;
    CONTINUE WHEN found_queue.paused;
    IF EXISTS (SELECT 1 FROM live j WHERE j.state = 0 AND j.queue_id = found_queue.id AND j.run_at_ms <= at_ms) THEN
      PERFORM promote_jobs(found_queue.id, at_ms, found_queue.by_open_lanes);
    END IF;
    -- The number of the worker that gets each job, by the job's position among those claimed; NULL: all go to the
    -- first.
    whom := NULL;
    IF claim.d IS NOT NULL THEN
      whom := ARRAY(SELECT d.number FROM unnest(claim.d) WITH ORDINALITY AS d(jobs, number)
        CROSS JOIN LATERAL generate_series(1, d.jobs) ORDER BY d.number);
    END IF;
    IF claim.p IS NOT NULL THEN
      entries := entries_read();
    END IF;
    IF found_queue.held THEN
      RETURN QUERY SELECT * FROM claim_held(found_queue.id, found_queue.solo_lane, found_queue.fair, claim.t, claim.g,
        claim.w, claim.l, whom, claim.n, claim.i, claim.c, claim.m, claim.o, at_ms, given->>'now' IS NULL) x
        -- Clients of version 1 read every note that they do not know as a claim's end.
        WHERE x.attempt IS NOT NULL OR x.type <> 'due' OR given ? 'v';
    ELSIF found_queue.fair THEN
      RETURN QUERY SELECT * FROM claim_by_turns(found_queue.id, claim.t, claim.g, claim.w, claim.l, whom, claim.n,
        claim.i, claim.c, claim.o, at_ms);
    ELSE
      RETURN QUERY SELECT * FROM claim_straight(found_queue.id, found_queue.solo_lane, claim.t, claim.g, claim.w,
        claim.l, whom, claim.n, claim.i, claim.m, claim.o, at_ms);
    END IF;
    GET DIAGNOSTICS got = ROW_COUNT;
    IF claim.p IS NOT NULL THEN
      PERFORM park(found_queue.id, claim.t, got - 1, entries_read() - entries, claim.p, at_ms);  -- One row is a note.
    END IF;
  END LOOP;

  -- Not as arguments: a function whose arguments are subqueries is not inlined, which costs more than the subqueries.
  SELECT EXISTS (SELECT 1 FROM registry r WHERE r.kind = '#waiter' AND r.until_ms > at_ms),
    EXISTS (SELECT 1 FROM registry r WHERE r.kind = '#idle' AND r.until_ms > at_ms) INTO is_waited, is_idle;
  RETURN QUERY SELECT * FROM note('now', at_ms, is_waited::int, is_idle::int);
END $$;

-- How many index entries this transaction has read at the front of its queues, dead ones included.
CREATE OR REPLACE FUNCTION {schema}.entries_read() RETURNS bigint LANGUAGE sql VOLATILE AS $$
  SELECT pg_stat_get_xact_tuples_returned('{schema}.live_ready'::regclass)
    + pg_stat_get_xact_tuples_returned('{schema}.live_future'::regclass)
$$;

-- Functions that are called only by other functions inherit their settings: setting them again would cost more than the
-- function itself.
CREATE OR REPLACE FUNCTION {schema}.promote_jobs(queue int, at_ms bigint, by_open_lanes boolean) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  made_ready int[];
BEGIN
  WITH promoted AS (
    UPDATE live SET state = 1 WHERE ctid = ANY(ARRAY(
      SELECT j.ctid FROM live j WHERE j.state = 0 AND j.queue_id = queue AND j.run_at_ms <= at_ms
      ORDER BY j.run_at_ms, j.key LIMIT {promote_max} FOR UPDATE SKIP LOCKED))
    RETURNING lane_id)
  SELECT array_agg(DISTINCT p.lane_id) INTO made_ready FROM promoted p WHERE by_open_lanes;
  IF made_ready IS NOT NULL THEN
    INSERT INTO open_lane_delta (queue_id, lanes) VALUES (queue, made_ready);
  END IF;
END $$;

-- Each of two concurrent statements has its own now: an attempt never begins before the job's run_at, nor before the
-- end of the previous attempt, which a pending row keeps in activated_at_ms. A clock that was set back does not
-- lengthen leases, though.
CREATE OR REPLACE FUNCTION {schema}.begin_ms(at_ms bigint, run_at_ms bigint, ended_ms bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN greatest(run_at_ms, ended_ms) > at_ms + 60000 THEN at_ms
    ELSE greatest(at_ms, run_at_ms, ended_ms) END
$$;

-- For queues with one lane: straight down the ready index, from the front, or from behind a mark (see claims.py).
CREATE OR REPLACE FUNCTION {schema}.claim_straight(queue int, lane int, t text, g text, w text[], l bigint[],
  whom int[], n int, tenants text[], mark jsonb, number smallint, at_ms bigint)
RETURNS SETOF {schema}.leased
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  whose record;
  ids tid[];
  got int := 0;
  due_ms bigint;
  entries bigint := pg_stat_get_xact_tuples_returned('live_ready'::regclass);
BEGIN
  SELECT x.tenant, nullif(x.limit_key, '') AS limit_key INTO whose FROM lane x WHERE x.id = lane;
  IF FOUND AND (tenants IS NULL OR whose.tenant = ANY(tenants)) THEN
    IF mark IS NULL THEN
      ids := ARRAY(SELECT j.ctid FROM live j WHERE j.state = 1 AND j.queue_id = queue AND j.lane_id = lane
        AND (j.expires_at_ms IS NULL OR j.expires_at_ms > at_ms)
        ORDER BY j.rank, j.run_at_ms, j.key LIMIT n FOR UPDATE SKIP LOCKED);
    ELSE
      ids := ARRAY(SELECT j.ctid FROM live j WHERE j.state = 1 AND j.queue_id = queue AND j.lane_id = lane
        AND (j.rank, j.run_at_ms, j.key) > ((mark->>0)::smallint, (mark->>1)::bigint, (mark->>2)::bigint)
        AND (j.expires_at_ms IS NULL OR j.expires_at_ms > at_ms)
        ORDER BY j.rank, j.run_at_ms, j.key LIMIT n FOR UPDATE SKIP LOCKED);
    END IF;
    entries := pg_stat_get_xact_tuples_returned('live_ready'::regclass) - entries;
    got := cardinality(ids);
  END IF;
  IF got > 0 AND whom IS NULL THEN
    -- The usual case: finding rows by a list of ctids is a tenth cheaper than joining them with their numbers.
    RETURN QUERY WITH taken AS (
      UPDATE live j SET state = 2, attempt = j.attempt + 1, attempts = j.attempts + 1, worker = w[1],
        activated_at_ms = begin_ms(at_ms, j.run_at_ms, j.activated_at_ms),
        lease_until_ms = begin_ms(at_ms, j.run_at_ms, j.activated_at_ms) + l[1]
      WHERE j.ctid = ANY(ids)
      RETURNING j.key, j.attempt, j.attempts, j.max_attempts, j.lease_until_ms, j.rank, j.run_at_ms)
    SELECT k.key, k.attempt, k.attempts, k.max_attempts, t, g, whose.tenant, k.lease_until_ms, j.variables, j.headers,
      (-k.rank)::smallint, k.run_at_ms, j.created_at_ms, j.timeout_ms, j.correlation_id, whose.limit_key, j.extra
    FROM taken k JOIN job j ON j.key = k.key ORDER BY k.rank, k.run_at_ms, k.key;
    GET DIAGNOSTICS got = ROW_COUNT;
  ELSIF got > 0 THEN
    RETURN QUERY WITH taken AS (
      UPDATE live j SET state = 2, attempt = j.attempt + 1, attempts = j.attempts + 1, worker = w[whom[p.place]],
        activated_at_ms = begin_ms(at_ms, j.run_at_ms, j.activated_at_ms),
        lease_until_ms = begin_ms(at_ms, j.run_at_ms, j.activated_at_ms) + l[whom[p.place]]
      FROM unnest(ids) WITH ORDINALITY AS p(id, place) WHERE j.ctid = p.id
      RETURNING p.place, j.key, j.attempt, j.attempts, j.max_attempts, j.lease_until_ms, j.rank, j.run_at_ms)
    SELECT k.key, k.attempt, k.attempts, k.max_attempts, t, g, whose.tenant, k.lease_until_ms, j.variables, j.headers,
      (-k.rank)::smallint, k.run_at_ms, j.created_at_ms, j.timeout_ms, j.correlation_id, whose.limit_key, j.extra
    FROM taken k JOIN job j ON j.key = k.key ORDER BY k.place;
    GET DIAGNOSTICS got = ROW_COUNT;
  END IF;
  IF got > 0 THEN
    INSERT INTO count_delta (queue_id, tenant, pending, processing) VALUES (queue, whose.tenant, -got, got);
  END IF;
  SELECT j.run_at_ms INTO due_ms FROM live j WHERE j.state = 0 AND j.queue_id = queue ORDER BY j.run_at_ms LIMIT 1;
  RETURN QUERY SELECT * FROM note('claim', 0, NULL, number::int, due_ms, entries);
END $$;

-- For queues with many lanes: rounds over those that have ready work, from behind the lane that this caller visited
-- last. Only the jobs are written, nothing shared; which lanes have work is read from the index, so it is never stale.
-- lane_max, low: see open_lanes.sql; lane_max NULL: lanes have no limit.
CREATE OR REPLACE FUNCTION {schema}.claim_by_turns(queue int, t text, g text, w text[], l bigint[], whom int[], n int,
  tenants text[], visited int, number smallint, at_ms bigint, lane_max int DEFAULT NULL, low bigint DEFAULT NULL,
  rounds int DEFAULT 1000000)
RETURNS SETOF {schema}.leased
LANGUAGE plpgsql {plan} AS $$
#variable_conflict use_column
DECLARE
  mine int[];
  lanes int[];
  rooms int[];
  share int;
  got int;
  rest int := n;
  is_cut_short boolean := false;
BEGIN
  IF tenants IS NOT NULL AND lane_max IS NULL THEN
    mine := ARRAY(SELECT x.id FROM lane x WHERE x.queue_id = queue AND x.tenant = ANY(tenants));
  END IF;
  LOOP
    IF lane_max IS NULL THEN
      lanes := lanes_with_work(queue, mine, visited, rest, at_ms);
    ELSE
      SELECT o.lanes, o.rooms INTO lanes, rooms FROM open_lanes(queue, tenants, visited, rest, at_ms, lane_max, low) o;
    END IF;
    EXIT WHEN cardinality(lanes) = 0;
    share := greatest(1, rest / cardinality(lanes));
    RETURN QUERY WITH taken AS (
      UPDATE live j SET state = 2, attempt = j.attempt + 1, attempts = j.attempts + 1,
        worker = w[coalesce(whom[n - rest + p.place], 1)],
        activated_at_ms = begin_ms(at_ms, j.run_at_ms, j.activated_at_ms),
        lease_until_ms = begin_ms(at_ms, j.run_at_ms, j.activated_at_ms) + l[coalesce(whom[n - rest + p.place], 1)]
      FROM unnest(ARRAY(SELECT p.id FROM unnest(lanes, rooms) AS r(lane, room) CROSS JOIN LATERAL (
        SELECT j.ctid AS id FROM live j WHERE j.state = 1 AND j.queue_id = queue AND j.lane_id = r.lane
          AND (j.expires_at_ms IS NULL OR j.expires_at_ms > at_ms)
        ORDER BY j.rank, j.run_at_ms, j.key
        LIMIT least(share, r.room) FOR UPDATE SKIP LOCKED) p)) WITH ORDINALITY AS p(id, place)
      WHERE j.ctid = p.id
      RETURNING p.place, j.key, j.lane_id, j.attempt, j.attempts, j.max_attempts, j.lease_until_ms, j.rank,
        j.run_at_ms),
    counted AS (
      INSERT INTO count_delta (queue_id, tenant, pending, processing)
      SELECT queue, x.tenant, -sum(s.n), sum(s.n) FROM (SELECT lane_id, count(*) AS n FROM taken GROUP BY 1) s
      JOIN lane x ON x.id = s.lane_id GROUP BY 2)
    SELECT k.key, k.attempt, k.attempts, k.max_attempts, t, g, x.tenant, k.lease_until_ms, j.variables, j.headers,
      (-k.rank)::smallint, k.run_at_ms, j.created_at_ms, j.timeout_ms, j.correlation_id, nullif(x.limit_key, ''),
      j.extra
    FROM taken k JOIN job j ON j.key = k.key JOIN lane x ON x.id = k.lane_id
    ORDER BY k.place;
    GET DIAGNOSTICS got = ROW_COUNT;
    visited := lanes[cardinality(lanes)];
    rest := rest - got;
    -- Other claims hold what these lanes have: the next claim, due immediately, finds the lanes behind them.
    is_cut_short := got = 0;
    rounds := rounds - 1;
    EXIT WHEN is_cut_short OR rest = 0 OR rounds = 0;
    -- Fewer than requested, but all that may start: these were all open lanes, and they are at their limits now.
    EXIT WHEN lane_max IS NOT NULL AND got = (SELECT sum(r) FROM unnest(rooms) r);
  END LOOP;
  RETURN QUERY SELECT * FROM note('claim', visited, NULL, number::int, CASE WHEN is_cut_short THEN at_ms
    ELSE (SELECT j.run_at_ms FROM live j WHERE j.state = 0 AND j.queue_id = queue ORDER BY j.run_at_ms LIMIT 1) END, 0);
END $$;

-- The next lanes that have ready work, starting behind `visited` and wrapping around: one probe of the index for each.
CREATE OR REPLACE FUNCTION {schema}.lanes_with_work(queue int, mine int[], visited int, most int, at_ms bigint)
RETURNS int[] LANGUAGE sql {plan} AS $$
  WITH RECURSIVE behind AS (
    (SELECT j.lane_id AS lane, 1 AS i FROM live j
     WHERE mine IS NULL AND j.state = 1 AND j.queue_id = queue AND j.lane_id > visited
      AND (j.expires_at_ms IS NULL OR j.expires_at_ms > at_ms) ORDER BY j.lane_id LIMIT 1)
    UNION ALL
    SELECT x.lane_id, b.i + 1 FROM behind b CROSS JOIN LATERAL (
      SELECT j.lane_id FROM live j WHERE j.state = 1 AND j.queue_id = queue AND j.lane_id > b.lane
        AND (j.expires_at_ms IS NULL OR j.expires_at_ms > at_ms) ORDER BY j.lane_id LIMIT 1) x WHERE b.i < most),
  before AS (
    (SELECT j.lane_id AS lane, 1 AS i FROM live j
     WHERE mine IS NULL AND j.state = 1 AND j.queue_id = queue AND j.lane_id <= visited
      AND (j.expires_at_ms IS NULL OR j.expires_at_ms > at_ms) ORDER BY j.lane_id LIMIT 1)
    UNION ALL
    SELECT x.lane_id, b.i + 1 FROM before b CROSS JOIN LATERAL (
      SELECT j.lane_id FROM live j WHERE j.state = 1 AND j.queue_id = queue AND j.lane_id > b.lane
        AND j.lane_id <= visited
        AND (j.expires_at_ms IS NULL OR j.expires_at_ms > at_ms) ORDER BY j.lane_id LIMIT 1) x WHERE b.i < most),
  named AS (
    -- Not EXISTS, which the planner may invert: it would read every ready job of the queue.
    SELECT m.lane FROM unnest(mine) AS m(lane) CROSS JOIN LATERAL (
      SELECT 1 FROM live j WHERE j.state = 1 AND j.queue_id = queue AND j.lane_id = m.lane
        AND (j.expires_at_ms IS NULL OR j.expires_at_ms > at_ms) LIMIT 1) w
    ORDER BY m.lane <= visited, m.lane)
  SELECT coalesce(array_agg(a.lane), '{}') FROM (
    SELECT w.lane FROM ((SELECT lane FROM behind) UNION ALL (SELECT lane FROM before)
      UNION ALL (SELECT lane FROM named)) w LIMIT most) a
$$;
