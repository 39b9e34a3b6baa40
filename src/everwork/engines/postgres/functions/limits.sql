-- Purpose: claims of types that are held back: by an open breaker, by how many jobs may run, by their rate.
-- Inputs: as claim_straight and claim_by_turns in activate.sql. Returns: leased jobs and notes, as they do.
-- Functions that only claim_held calls inherit its settings: setting them again would cost more than what they do.

-- Claims of one queue of a limited type pass its gate one after the other: each sees what those before have leased.
-- Locks are taken in this order: jobs, breakers, gates by type and group; no transaction that holds a gate waits for a
-- breaker. is_real: at_ms is the server's time, which goes on while a statement waits.
CREATE OR REPLACE FUNCTION {schema}.claim_held(queue int, lane int, fair boolean, t text, g text, w text[], l bigint[],
  whom int[], n int, tenants text[], visited int, mark jsonb, number smallint, at_ms bigint, is_real boolean)
RETURNS SETOF {schema}.leased
LANGUAGE plpgsql {plan} AS $$
#variable_conflict use_column
DECLARE
  held record;
  door {schema}.gate;
  busy record;
  most int;
  since bigint;
  begun int;
  low bigint := 0;
  lowest bigint;
  passed bigint;
  room int := n;
  is_probe boolean := false;
  got int := 0;
  before int;
  one {schema}.leased;
  last {schema}.leased;
BEGIN
  SELECT * INTO held FROM type x WHERE x.name = t;
  IF held.breaker_open_until_ms <= at_ms THEN
    SELECT * INTO held FROM type x WHERE x.name = t FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN  -- Another transaction claims or ends the probe: a claim in a moment may find work.
      RETURN QUERY SELECT * FROM note('due', 0, NULL, NULL, at_ms + 100);
      RETURN;
    END IF;
    is_probe := held.breaker_open_until_ms <= at_ms;
    IF is_probe AND EXISTS (SELECT 1 FROM live j
      WHERE j.key = held.breaker_probe_key AND j.attempt = held.breaker_probe_attempt AND j.state + 0 = 2) THEN
      RETURN;
    END IF;
  END IF;
  IF held.breaker_open_until_ms > at_ms THEN
    RETURN QUERY SELECT * FROM note('due', 0, NULL, NULL, due_from(queue, held.breaker_open_until_ms));
    RETURN;
  END IF;
  IF is_probe THEN
    room := 1;
  END IF;

  IF coalesce(held.max_running, held.lane_max_running, held.rate_jobs) IS NOT NULL THEN
    IF fair AND held.lane_max_running IS NOT NULL AND is_closed(queue, tenants, at_ms) THEN
      RETURN QUERY SELECT * FROM note('claim', visited, NULL, number::int,
        (SELECT j.run_at_ms FROM live j WHERE j.state = 0 AND j.queue_id = queue ORDER BY j.run_at_ms LIMIT 1), 0);
      RETURN;
    END IF;
    FOR round IN 1..2 LOOP
      SELECT * INTO door FROM gate x WHERE x.queue_id = queue FOR UPDATE;
      EXIT WHEN FOUND;
      INSERT INTO gate (queue_id) VALUES (queue) ON CONFLICT DO NOTHING;
    END LOOP;
    since := door.since_ms;
    begun := door.started;
    IF held.rate_jobs IS NOT NULL THEN
      -- Windows follow the order in which claims pass the gate, not the order in which statements began.
      DECLARE
        gate_ms bigint := CASE WHEN is_real THEN (extract(epoch FROM clock_timestamp()) * 1000)::bigint ELSE at_ms END;
      BEGIN
        -- A window that begins far ahead was written before the clock was set back.
        IF since IS NULL OR abs(gate_ms - since) >= held.rate_ms THEN
          since := gate_ms;
          begun := 0;
        END IF;
      END;
      room := least(room, held.rate_jobs - begun);
      IF room <= 0 THEN
        RETURN QUERY SELECT * FROM note('due', 0, NULL, NULL, due_from(queue, since + held.rate_ms));
        RETURN;
      END IF;
    END IF;
    -- Now and then the mark is ignored: it may miss a job that was leased while the policy changed.
    IF abs(at_ms - door.counted_at_ms) < {count_every_ms} THEN
      low := door.low_key;
    END IF;
    IF held.max_running IS NOT NULL OR held.lane_max_running IS NOT NULL THEN
      most := held.max_running;
      IF NOT fair AND EXISTS (SELECT 1 FROM lane x WHERE x.id = lane AND x.limit_key <> '') THEN
        most := least(most, held.lane_max_running);  -- All running jobs are in the only lane.
      END IF;
      SELECT * INTO busy FROM running(queue, low, coalesce(most, 1));
      room := least(room, most - busy.jobs);
      lowest := busy.lowest;
      passed := busy.passed;
    END IF;
    IF fair AND held.lane_max_running IS NOT NULL AND room > 0 THEN
      PERFORM apply_open_lane_delta(queue);
      IF abs(at_ms - door.listed_at_ms) >= {count_every_ms} THEN
        PERFORM list_open_lanes(door, at_ms);
      END IF;
    END IF;
  END IF;

  IF NOT is_probe AND low = 0 AND coalesce(passed, 0) <= {count_passed_max} AND room > 0 THEN
    -- The usual case: it does not matter which jobs these are.
    IF fair THEN
      RETURN QUERY SELECT * FROM claim_by_turns(queue, t, g, w, l, whom, room, tenants, visited, number, at_ms,
        held.lane_max_running, low);
    ELSE
      RETURN QUERY SELECT * FROM claim_straight(queue, lane, t, g, w, l, whom, room, tenants, mark, number, at_ms);
    END IF;
    GET DIAGNOSTICS got = ROW_COUNT;
    got := got - 1;  -- The note.
    room := 0;
  END IF;
  WHILE room > got LOOP
    before := got;
    FOR one IN
      SELECT * FROM claim_by_turns(queue, t, g, w, l, whom[got + 1:], room - got, tenants, visited, number, at_ms,
        held.lane_max_running, least(low, lowest), 1) WHERE fair
      UNION ALL SELECT * FROM claim_straight(queue, lane, t, g, w, l, whom, room, tenants, mark, number, at_ms)
        WHERE NOT fair
    LOOP
      IF one.attempt IS NULL THEN
        last := one;
      ELSE
        got := got + 1;
        lowest := least(lowest, one.key);
        IF is_probe THEN
          UPDATE type x SET breaker_probe_key = one.key, breaker_probe_attempt = one.attempt WHERE x.name = t;
        END IF;
        RETURN NEXT one;
      END IF;
    END LOOP;
    EXIT WHEN NOT fair OR got = before OR got = room;
    visited := last.key;
  END LOOP;
  IF last.type IS NOT NULL THEN
    RETURN NEXT last;
  END IF;

  IF door.queue_id IS NOT NULL THEN
    PERFORM leave_gate(door, CASE WHEN got > 0 AND held.rate_jobs IS NOT NULL THEN since END, begun + got, low, lowest,
      passed, at_ms);
    IF got > 0 AND begun + got >= held.rate_jobs THEN
      RETURN QUERY SELECT * FROM note('due', 0, NULL, NULL, due_from(queue, since + held.rate_ms));
    END IF;
  END IF;
END $$;

-- Keep what the next claim of the queue needs, if it has changed. The keys of running jobs begin with `lowest`: a count
-- from there skips the dead entries before it: under a snapshot that is held open, those of every job that ever ran.
CREATE OR REPLACE FUNCTION {schema}.leave_gate(door {schema}.gate, since bigint, begun int, low bigint, lowest bigint,
  passed bigint, at_ms bigint)
RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
  IF lowest < low OR passed > {count_passed_max} THEN
    door.counted_at_ms := CASE WHEN low = 0 THEN at_ms ELSE door.counted_at_ms END;
    low := coalesce(lowest, low);
  END IF;
  IF since IS NOT NULL OR low <> door.low_key THEN
    UPDATE gate x SET since_ms = coalesce(since, x.since_ms),
      started = CASE WHEN since IS NULL THEN x.started ELSE begun END,
      low_key = low, counted_at_ms = door.counted_at_ms
    WHERE x.queue_id = door.queue_id;
  END IF;
END $$;

-- When the next claim may find work that is held back until an instant; NULL: there is none.
CREATE OR REPLACE FUNCTION {schema}.due_from(queue int, until_ms bigint) RETURNS bigint LANGUAGE plpgsql {plan} AS $$
BEGIN
  IF EXISTS (SELECT 1 FROM live j WHERE j.state = 1 AND j.queue_id = queue) THEN
    RETURN until_ms;
  END IF;
  RETURN (
    SELECT greatest(until_ms, j.run_at_ms) FROM live j WHERE j.state = 0 AND j.queue_id = queue
    ORDER BY j.run_at_ms LIMIT 1);
END $$;

-- The running jobs of a queue, from a key on: how many (at most `most` are counted), the lowest key, and how many dead
-- entries the count has passed.
CREATE OR REPLACE FUNCTION {schema}.running(queue int, low bigint, most int, OUT jobs int, OUT lowest bigint,
  OUT passed bigint)
LANGUAGE plpgsql AS $$
DECLARE
  entries bigint := pg_stat_get_xact_tuples_returned('live_busy'::regclass);
BEGIN
  SELECT count(*), min(b.key) INTO jobs, lowest
  FROM (
    SELECT j.key FROM live j WHERE j.state = 2 AND j.queue_id = queue AND j.key >= low ORDER BY j.key LIMIT most) b;
  passed := pg_stat_get_xact_tuples_returned('live_busy'::regclass) - entries - jobs;
END $$;
