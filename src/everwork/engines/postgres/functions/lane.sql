-- Purpose: create the types, queues and lanes that jobs and demands name for the first time.
-- Inputs: type; or queue, tenant and limit key ('' is none). Returns: nothing; or the lane's id.

CREATE OR REPLACE FUNCTION {schema}.make_type(type_name text) RETURNS void
LANGUAGE plpgsql {plan} AS $$
BEGIN
  INSERT INTO type (name) VALUES (type_name) ON CONFLICT DO NOTHING;
  INSERT INTO queue (type, grp) VALUES (type_name, '') ON CONFLICT DO NOTHING;
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
