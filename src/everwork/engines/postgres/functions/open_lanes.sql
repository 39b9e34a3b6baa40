-- Purpose: the open lanes of queues whose type has a limit per key, so that claims skip lanes at their limit.
-- Inputs and returns: see each function.
--
-- A lane with ready work and capacity is in open_lane or in open_lane_delta. Every transaction that gives a lane work (a
-- create, a due job, a retry, a requeue) or capacity (the end of an attempt) adds it to open_lane_delta. Claims hold the
-- queue's gate, one after the other. Each first moves the lanes of open_lane_delta to open_lane. Then, in another
-- statement, it visits open lanes, and closes those that are full or empty. What is committed between the two
-- statements stays in open_lane_delta, for the next claim. A lane that is full or empty may be open until a claim
-- visits it.

-- Adds lanes, each with its queue, to open_lane_delta, if claims of the queue read it. Called after jobs of the lanes
-- were written.
CREATE OR REPLACE FUNCTION {schema}.note_open_lanes(queues int[], lanes int[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO open_lane_delta (queue_id, lanes)
  SELECT n.queue_id, n.lanes FROM (
    SELECT x.queue_id, array_agg(DISTINCT x.lane_id) AS lanes
    FROM unnest(queues, note_open_lanes.lanes) AS x(queue_id, lane_id) GROUP BY 1) n
  CROSS JOIN LATERAL (SELECT q.type FROM queue q WHERE q.id = n.queue_id AND q.fair LIMIT 1) q
  CROSS JOIN LATERAL (SELECT 1 FROM type t WHERE t.name = q.type AND t.lane_max_running IS NOT NULL LIMIT 1) t;
END $$;

-- For the holder of the gate.
CREATE OR REPLACE FUNCTION {schema}.apply_open_lane_delta(queue int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  WITH delta AS (DELETE FROM open_lane_delta x WHERE x.queue_id = queue RETURNING x.lanes)
  INSERT INTO open_lane (queue_id, lane_id)
  SELECT DISTINCT queue, n.lane FROM delta CROSS JOIN LATERAL unnest(delta.lanes) AS n(lane)
  LEFT JOIN LATERAL (SELECT 1 AS is_open FROM open_lane a WHERE a.queue_id = queue AND a.lane_id = n.lane LIMIT 1) o
    ON true
  WHERE o.is_open IS NULL;  -- Only the holder of the gate inserts: ON CONFLICT would be slower, and is not needed.
END $$;

-- For sweeps: moves the lanes of a queue without workers, whose open_lane_delta no claim reads.
CREATE OR REPLACE FUNCTION {schema}.fold_open_lane_delta(queue int) RETURNS void LANGUAGE plpgsql {plan} AS $$
BEGIN
  INSERT INTO gate (queue_id) VALUES (queue) ON CONFLICT DO NOTHING;
  PERFORM 1 FROM gate x WHERE x.queue_id = queue FOR UPDATE SKIP LOCKED;
  IF FOUND THEN
    PERFORM apply_open_lane_delta(queue);
  END IF;
END $$;

-- For the holder of the gate: adds all lanes with work to open_lane, if it is incomplete, or has not been completed for
-- a while: processes of an older version add nothing to open_lane_delta. A transaction that has read the type before it
-- had the limit adds nothing either: until all such transactions have ended, every claim looks at all lanes.
CREATE OR REPLACE FUNCTION {schema}.list_open_lanes(door {schema}.gate, at_ms bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  is_complete boolean := oldest_xid() >= door.listed_xid;
BEGIN
  INSERT INTO open_lane (queue_id, lane_id)
  SELECT door.queue_id, l FROM unnest(lanes_with_work(door.queue_id, NULL, 0, 2147483647, at_ms)) l
  ON CONFLICT DO NOTHING;
  IF is_complete THEN
    UPDATE gate x SET listed_at_ms = at_ms WHERE x.queue_id = door.queue_id;
  ELSIF door.listed_xid IS NULL THEN
    UPDATE gate x SET listed_xid = pg_snapshot_xmax(pg_current_snapshot())::text::bigint
    WHERE x.queue_id = door.queue_id;
  END IF;
END $$;

-- Every other transaction with a lower xid has ended, and so has every statement that may have started before it. Of
-- other users' statements, only those with an xid may be visible.
CREATE OR REPLACE FUNCTION {schema}.oldest_xid() RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
  RETURN least(pg_snapshot_xmin(pg_current_snapshot())::text::bigint, pg_current_xact_id()::text::bigint - (
    SELECT coalesce(max(age(a.backend_xmin)), 0) FROM pg_stat_activity a WHERE a.pid <> pg_backend_pid()));
END $$;

-- Whether there is nothing to claim for these tenants (NULL: for any), checked without the gate: while that is so,
-- claims do not wait for each other.
CREATE OR REPLACE FUNCTION {schema}.is_closed(queue int, tenants text[], at_ms bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
  RETURN EXISTS (SELECT 1 FROM gate x WHERE x.queue_id = queue AND abs(at_ms - x.listed_at_ms) < {count_every_ms})
    AND NOT EXISTS (SELECT 1 FROM open_lane_delta x WHERE x.queue_id = queue)
    AND NOT EXISTS (SELECT 1 FROM next_open_lanes(queue, tenants, 0, 2147483647, 1));
END $$;

-- The next open lanes behind one lane and up to another.
CREATE OR REPLACE FUNCTION {schema}.next_open_lanes(queue int, tenants text[], after int, until int, most int)
RETURNS SETOF int LANGUAGE plpgsql AS $$
BEGIN
  IF tenants IS NULL THEN
    RETURN QUERY SELECT o.lane_id FROM open_lane o
      WHERE o.queue_id = queue AND o.lane_id > after AND o.lane_id <= until ORDER BY o.lane_id LIMIT most;
  ELSE
    RETURN QUERY SELECT o.lane_id FROM open_lane o
      CROSS JOIN LATERAL (SELECT 1 FROM lane x WHERE x.id = o.lane_id AND x.tenant = ANY(tenants) LIMIT 1) x
      WHERE o.queue_id = queue AND o.lane_id > after AND o.lane_id <= until ORDER BY o.lane_id LIMIT most;
  END IF;
END $$;

-- For the holder of the gate: the next lanes with ready work and capacity, starting behind `visited` and wrapping
-- around, and how many of `most` jobs may start in each. Lanes without either are closed. No job with a key below `low`
-- is running.
CREATE OR REPLACE FUNCTION {schema}.open_lanes(queue int, tenants text[], visited int, most int, at_ms bigint,
  lane_max int, low bigint, OUT lanes int[], OUT rooms int[])
LANGUAGE plpgsql AS $$
DECLARE
  after int := visited;
  until int := 2147483647;
  seen int[];
  found_rooms int[];
  place int;
  closed int[] := '{}';
  looks int := most;
BEGIN
  lanes := '{}';
  rooms := '{}';
  LOOP
    seen := ARRAY(SELECT * FROM next_open_lanes(queue, tenants, after, until, looks));
    IF seen = '{}' THEN
      EXIT WHEN until = visited;
      after := 0;
      until := visited;
      CONTINUE;
    END IF;
    after := seen[cardinality(seen)];
    found_rooms := rooms_of(queue, seen, most, at_ms, lane_max, low);
    FOR place IN 1..cardinality(seen) LOOP
      IF found_rooms[place] = 0 THEN
        closed := closed || seen[place];
      ELSIF cardinality(lanes) < most THEN
        lanes := lanes || seen[place];
        rooms := rooms || found_rooms[place];
      END IF;
    END LOOP;
    EXIT WHEN cardinality(lanes) >= most;
    looks := 4 * looks;  -- Many open lanes are full or empty.
  END LOOP;
  IF closed <> '{}' THEN
    DELETE FROM open_lane o WHERE o.queue_id = queue AND o.lane_id = ANY(closed);
  END IF;
END $$;

-- How many more jobs, up to `most`, may start in each of these lanes; 0: the lane is full or has no ready work.
CREATE OR REPLACE FUNCTION {schema}.rooms_of(queue int, lanes int[], most int, at_ms bigint, lane_max int, low bigint)
RETURNS int[] LANGUAGE plpgsql AS $$
DECLARE
  busy jsonb := (SELECT jsonb_object_agg(b.lane_id, b.n) FROM (
    SELECT j.lane_id, count(*) AS n FROM live j WHERE j.state = 2 AND j.queue_id = queue AND j.key >= low
      AND j.lane_id = ANY(lanes) GROUP BY 1) b);
BEGIN
  RETURN ARRAY(
    SELECT CASE WHEN w.is_ready IS NULL THEN 0
      WHEN lane_max - b.jobs >= most THEN most
      WHEN (SELECT x.limit_key <> '' FROM lane x WHERE x.id = s.lane) THEN greatest(0, lane_max - b.jobs)
      ELSE most END
    FROM unnest(lanes) WITH ORDINALITY AS s(lane, place)
    -- Not EXISTS, for which the planner may read every ready job of the queue.
    LEFT JOIN LATERAL (SELECT true AS is_ready FROM live j
      WHERE j.state = 1 AND j.queue_id = queue AND j.lane_id = s.lane
        AND (j.expires_at_ms IS NULL OR j.expires_at_ms > at_ms) LIMIT 1) w ON true
    CROSS JOIN LATERAL (SELECT coalesce((busy->>(s.lane::text))::int, 0) AS jobs) b
    ORDER BY s.place);
END $$;
