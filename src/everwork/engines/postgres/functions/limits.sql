-- Purpose: claims of types that are held back: by a breaker that is not closed, by how many jobs may run, by their rate.
-- Inputs: as claim_straight and claim_by_turns in activate.sql. Returns: leased jobs and notes, as they do.

-- Claims of one queue of a limited type pass its gate one after the other: each statement behind it sees what those before it have
-- leased. Locks are taken in this order: jobs, breakers, gates by type and group; nobody who holds a gate waits for a breaker.
CREATE OR REPLACE FUNCTION {schema}.claim_held(queue int, lane int, fair boolean, t text, g text, w text[], l bigint[], whom int[], n int, tenants text[], visited int,
  mark jsonb, number smallint, at_ms bigint)
RETURNS SETOF {schema}.leased
LANGUAGE plpgsql {plan} AS $$
#variable_conflict use_column
DECLARE
  held record;
  ends_ms bigint;
  begun int;
  room int := n;
  rooms jsonb;
  is_probe boolean := false;
  got int := 0;
  one {schema}.leased;
BEGIN
  SELECT * INTO held FROM type x WHERE x.name = t;
  IF held.breaker_open_until_ms <= at_ms THEN
    SELECT * INTO held FROM type x WHERE x.name = t FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN  -- Somebody takes the probe's place, or ends it: it is worth a look in a moment.
      RETURN QUERY SELECT * FROM note('due', 0, NULL, NULL, at_ms + 100);
      RETURN;
    END IF;
    is_probe := held.breaker_open_until_ms <= at_ms;
    IF is_probe AND EXISTS (SELECT 1 FROM live j WHERE j.key = held.breaker_probe_key AND j.attempt = held.breaker_probe_attempt AND j.state + 0 = 2) THEN
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
    FOR round IN 1..2 LOOP
      SELECT x.until_ms, x.started INTO ends_ms, begun FROM gate x WHERE x.queue_id = queue FOR UPDATE;
      EXIT WHEN FOUND;
      INSERT INTO gate (queue_id) VALUES (queue) ON CONFLICT DO NOTHING;
    END LOOP;
    IF held.rate_jobs IS NOT NULL THEN
      -- An end that is far away was written before the clock was set back.
      IF ends_ms IS NULL OR ends_ms NOT BETWEEN at_ms + 1 AND at_ms + held.rate_ms + 60000 THEN
        ends_ms := at_ms + held.rate_ms;
        begun := 0;
      END IF;
      room := least(room, held.rate_jobs - begun);
      IF room <= 0 THEN
        RETURN QUERY SELECT * FROM note('due', 0, NULL, NULL, due_from(queue, ends_ms));
        RETURN;
      END IF;
    END IF;
    IF held.max_running IS NOT NULL THEN
      room := least(room, held.max_running - (SELECT count(*)::int FROM (SELECT 1 FROM live j WHERE j.state = 2 AND j.queue_id = queue LIMIT held.max_running) b));
    END IF;
    IF held.lane_max_running IS NOT NULL THEN
      rooms := lane_rooms(queue, held.lane_max_running);
      IF NOT fair AND EXISTS (SELECT 1 FROM lane x WHERE x.id = lane AND x.limit_key <> '') THEN
        room := least(room, coalesce((rooms->>(lane::text))::int, held.lane_max_running));
      END IF;
    END IF;
    IF room <= 0 THEN
      RETURN;
    END IF;
  END IF;

  FOR one IN
    SELECT * FROM claim_by_turns(queue, t, g, w, l, whom, room, tenants, visited, number, at_ms, rooms, held.lane_max_running) WHERE fair
    UNION ALL SELECT * FROM claim_straight(queue, lane, t, g, w, l, whom, room, tenants, mark, number, at_ms) WHERE NOT fair
  LOOP
    IF one.attempt IS NOT NULL THEN
      got := got + 1;
      IF is_probe THEN
        UPDATE type x SET breaker_probe_key = one.key, breaker_probe_attempt = one.attempt WHERE x.name = t;
      END IF;
    END IF;
    RETURN NEXT one;
  END LOOP;
  IF held.rate_jobs IS NOT NULL AND got > 0 THEN
    UPDATE gate x SET until_ms = ends_ms, started = begun + got WHERE x.queue_id = queue;
    IF got < n AND begun + got >= held.rate_jobs THEN
      RETURN QUERY SELECT * FROM note('due', 0, NULL, NULL, due_from(queue, ends_ms));
    END IF;
  END IF;
END $$;

-- When asking again may find work that is held back until an instant; NULL: there is none.
CREATE OR REPLACE FUNCTION {schema}.due_from(queue int, until_ms bigint) RETURNS bigint LANGUAGE plpgsql {plan} AS $$
BEGIN
  IF EXISTS (SELECT 1 FROM live j WHERE j.state = 1 AND j.queue_id = queue) THEN
    RETURN until_ms;
  END IF;
  RETURN (SELECT greatest(until_ms, j.run_at_ms) FROM live j WHERE j.state = 0 AND j.queue_id = queue ORDER BY j.run_at_ms LIMIT 1);
END $$;

-- How many more jobs may run of each lane that has a limit key and jobs that run: {"lane": number, ...}.
CREATE OR REPLACE FUNCTION {schema}.lane_rooms(queue int, most int) RETURNS jsonb LANGUAGE plpgsql {plan} AS $$
BEGIN
  RETURN (SELECT coalesce(jsonb_object_agg(b.lane_id, greatest(0, most - b.n)), '{}')
    FROM (SELECT j.lane_id, count(*) AS n FROM live j WHERE j.state = 2 AND j.queue_id = queue GROUP BY j.lane_id) b
    JOIN lane x ON x.id = b.lane_id AND x.limit_key <> '');
END $$;
