-- Version 9. Claims of types with a limit per key visit only open lanes: those that may have ready work and capacity.
-- open_lane is written only by transactions that hold the queue's gate. Others append to open_lane_delta, in the
-- transaction that makes a lane worth a visit, so that no two of them meet in a row. See functions/open_lanes.sql.
CREATE TABLE {schema}.open_lane (queue_id int NOT NULL, lane_id int NOT NULL, PRIMARY KEY (queue_id, lane_id)) WITH (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE TABLE {schema}.open_lane_delta (queue_id int NOT NULL, lanes int[] NOT NULL) WITH (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE INDEX open_lane_delta_queue ON {schema}.open_lane_delta (queue_id);

-- listed_at_ms: when all lanes with work were last put into open_lane; 0: open_lane is incomplete. listed_xid: every
-- transaction from this one on writes to open_lane_delta.
ALTER TABLE {schema}.gate DROP COLUMN is_full, ADD listed_at_ms bigint NOT NULL DEFAULT 0, ADD listed_xid bigint;

-- Functions that take or return something else now, or are gone.
DROP FUNCTION IF EXISTS {schema}.promote_jobs(int, bigint);
DROP FUNCTION IF EXISTS {schema}.claim_by_turns(int, text, text, text[], bigint[], int[], int, text[], int, smallint,
  bigint, jsonb, int, int);
DROP FUNCTION IF EXISTS {schema}.lanes_with_work(int, int[], int, int, bigint, jsonb);
DROP FUNCTION IF EXISTS {schema}.has_room(jsonb, int);
DROP FUNCTION IF EXISTS {schema}.is_full(int, int, text[], bigint);
DROP FUNCTION IF EXISTS {schema}.running(int, bigint, int, int);
DROP FUNCTION IF EXISTS {schema}.leave_gate({schema}.gate, bigint, int, bigint, bigint, bigint, boolean, bigint);
