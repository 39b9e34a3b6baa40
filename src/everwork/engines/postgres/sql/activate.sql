-- Purpose: lease jobs, and settle earlier ones in the same call.
-- Inputs: one document, see functions/activate.sql. Returns: leased jobs and notes.

-- name: step
SELECT * FROM {schema}.step($1::jsonb);

-- name: unpark
-- Waits for a create that is using one of the demands: its job is committed before this returns.
DELETE FROM {schema}.parked p WHERE p.worker = $1
AND p.queue_id = ANY(ARRAY(SELECT q.id FROM {schema}.queue q WHERE q.type = ANY($2) AND q.grp = ''));

-- name: listen
-- Whether the connection is the only one with this token, which it keeps until it is closed.
SELECT pg_try_advisory_lock({listening}, $1);
