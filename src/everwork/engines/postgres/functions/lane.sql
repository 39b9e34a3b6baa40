-- Purpose: create the types, queues and lanes that jobs and demands name for the first time.
-- Inputs: type; or queue, tenant and limit key ('' is none). Returns: nothing; or the lane's id.

-- A deleted type whose rows have not been purged yet becomes a new type, see types.sql.
CREATE OR REPLACE FUNCTION {schema}.make_type(type_name text) RETURNS void
LANGUAGE plpgsql {plan} AS $$
BEGIN
  IF NOT EXISTS (SELECT 1 FROM type t WHERE t.name = type_name AND t.deleted_at_ms IS NULL) THEN
    INSERT INTO type AS t (name) VALUES (type_name)
    ON CONFLICT (name) DO UPDATE SET deleted_at_ms = NULL, deleted_xid = NULL WHERE t.deleted_at_ms IS NOT NULL;
  END IF;
  INSERT INTO queue (type, grp) VALUES (type_name, '') ON CONFLICT DO NOTHING;
END $$;

-- Creates a type unless it exists, and locks its row, so that it is not deleted before the caller's transaction ends.
CREATE OR REPLACE FUNCTION {schema}.take_type(type_name text) RETURNS void
LANGUAGE plpgsql {plan} AS $$
BEGIN
  LOOP
    PERFORM make_type(type_name);
    PERFORM 1 FROM type t WHERE t.name = type_name AND t.deleted_at_ms IS NULL FOR UPDATE;
    EXIT WHEN FOUND;
  END LOOP;
END $$;

CREATE OR REPLACE FUNCTION {schema}.make_lane(queue int, whose text, what text) RETURNS int
LANGUAGE plpgsql {plan} AS $$
DECLARE
  lane int;
BEGIN
  INSERT INTO lane AS l (queue_id, tenant, limit_key) VALUES (queue, whose, what)
  ON CONFLICT (queue_id, tenant, limit_key) DO UPDATE SET tenant = l.tenant RETURNING l.id INTO lane;
  UPDATE queue q SET solo_lane = lane WHERE q.id = queue AND solo_lane IS NULL;
  -- From its second lane on, claims of the queue go by turns; the row is not written again after that.
  UPDATE queue q SET fair = true WHERE q.id = queue AND solo_lane <> lane AND NOT fair;
  RETURN lane;
END $$;
