-- Purpose: park the demands of waiting workers, so that creates can hand jobs over to them.
-- Inputs: queue and type; how many jobs the worker's claim got, how many index entries it read; the demand: [worker,
--   lease_ms, token, secret, receiver, the number of jobs that meets it]; the instant. Returns: nothing.

-- Called by `step`, whose settings it inherits. Never waits: a demand that is locked is being used by a create.
CREATE OR REPLACE FUNCTION {schema}.park(queue int, type_name text, got int, entries bigint, demand jsonb, at_ms bigint)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  -- A create looks at the front of the queue, too: it must not scan many dead entries there.
  parks boolean := got < (demand->>5)::int AND entries <= {parked_entries_max};
BEGIN
  IF parks THEN
    SELECT coalesce(t.breaker_failures_max, t.breaker_open_until_ms, t.max_running, t.lane_max_running, t.rate_jobs) IS NULL
      AND NOT EXISTS (SELECT 1 FROM queue q WHERE q.type = type_name AND q.grp > '' AND NOT q.dropped)
    INTO parks FROM type t WHERE t.name = type_name;
  END IF;
  DELETE FROM parked p WHERE p.ctid = ANY(ARRAY(
    SELECT x.ctid FROM parked x
    WHERE x.queue_id = queue AND x.until_ms BETWEEN at_ms AND at_ms + {park_ms} AND (parks OR x.worker = demand->>0)
    FOR UPDATE SKIP LOCKED));
  IF parks THEN
    INSERT INTO parked (queue_id, token, receiver, until_ms, lease_ms, worker, secret)
    VALUES (queue, (demand->>2)::int, (demand->>4)::int, at_ms + {park_ms}, (demand->>1)::bigint, demand->>0,
      demand->>3);
  END IF;
END $$;
