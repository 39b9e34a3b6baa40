-- Purpose: manage types (pauses, breakers, policies), groups, registry entries (with or without an expiry) and turns.
-- Inputs and returns: see each statement.

-- name: take_type
SELECT {schema}.take_type($1);

-- name: pause
UPDATE {schema}.type SET paused = $2 WHERE name = $1;

-- name: reset_breaker
UPDATE {schema}.type t SET breaker_failures = 0, breaker_open_until_ms = NULL, breaker_probe_key = NULL
FROM (SELECT name, breaker_open_until_ms FROM {schema}.type WHERE name = $1 FOR UPDATE) o
WHERE t.name = o.name RETURNING o.breaker_open_until_ms IS NOT NULL;

-- name: open_breaker
UPDATE {schema}.type SET breaker_open_until_ms = {schema}.now_ms($3) + $2::bigint, breaker_probe_key = NULL
WHERE name = $1;

-- name: set_policy
-- Also stores the numbers that statements check directly. If the rule for dead letters changes, the sweep starts over
-- with the first one.
-- Running jobs are recounted and open lanes listed again, because neither is kept up to date for a type without limits.
WITH previous AS (
  SELECT name, requeue_ms, requeue_rounds FROM {schema}.type WHERE name = $1 FOR UPDATE),
kept AS (
  UPDATE {schema}.type t SET policy = $2, max_attempts = $3, breaker_failures_max = $4, breaker_open_ms = $5,
    max_running = $6, lane_max_running = $7, rate_jobs = $8, rate_ms = $9, requeue_ms = $10, requeue_rounds = $11,
    keep_completed_ms = $12, keep_failed_ms = $13
  FROM previous p WHERE t.name = p.name),
looked AS (
  UPDATE {schema}.queue q SET back_at_ms = 0, back_key = 0 FROM previous p WHERE q.type = p.name AND q.back_at_ms > 0
    AND (p.requeue_ms, p.requeue_rounds) IS DISTINCT FROM ($10::bigint, $11::smallint))
UPDATE {schema}.gate g SET low_key = 0, counted_at_ms = 0, listed_at_ms = 0, listed_xid = NULL FROM {schema}.queue q
WHERE q.type = $1 AND g.queue_id = q.id AND (g.low_key > 0 OR g.listed_at_ms > 0 OR g.listed_xid IS NOT NULL);

-- name: add_group
INSERT INTO {schema}.queue (type, grp) VALUES ($1, $2) ON CONFLICT (type, grp) DO UPDATE SET dropped = false;

-- name: drop_group
-- The row is kept for its finished jobs; no new jobs are created for it.
UPDATE {schema}.queue SET dropped = true WHERE type = $1 AND grp = $2 AND grp <> '' AND NOT dropped RETURNING id;

-- name: pending_of
(SELECT key FROM {schema}.live WHERE queue_id = $1 AND state = 0 LIMIT $2)
UNION ALL (SELECT key FROM {schema}.live WHERE queue_id = $1 AND state = 1 LIMIT $2) LIMIT $2;

-- name: types
SELECT * FROM {schema}.list_types({schema}.now_ms($1));

-- name: delete_type
SELECT {schema}.delete_type($1, NULL, NULL, {schema}.now_ms($2));

-- name: forget_types
-- Inputs: types and the policy of each, sorted; how long a type must have been unused; now. Returns the deleted types.
SELECT x.name FROM unnest($1::text[], $2::text[]) AS x(name, policy)
WHERE {schema}.delete_type(x.name, x.policy, $3, {schema}.now_ms($4)) = 'accepted';

-- name: register
INSERT INTO {schema}.registry (kind, name, body, until_ms) VALUES ($1, $2, $3, {schema}.now_ms($5) + $4::bigint)
ON CONFLICT (kind, name) DO UPDATE SET body = excluded.body, until_ms = excluded.until_ms;

-- name: unregister
DELETE FROM {schema}.registry WHERE kind = $1 AND name = $2 AND coalesce(until_ms > {schema}.now_ms($3), true)
RETURNING name;

-- name: registered
-- Kinds that begin with # are internal to the engine.
SELECT kind, name, body, until_ms FROM {schema}.registry
WHERE kind = $1 AND kind NOT LIKE '#%' AND coalesce(until_ms > {schema}.now_ms($2), true) ORDER BY name;

-- name: all_registered
SELECT kind, name, body, until_ms FROM {schema}.registry
WHERE kind NOT LIKE '#%' AND coalesce(until_ms > {schema}.now_ms($1), true) ORDER BY kind, name;

-- name: last_registered
SELECT kind, name, body, until_ms FROM {schema}.registry
WHERE kind = $1 AND kind NOT LIKE '#%' AND name < $2 AND coalesce(until_ms > {schema}.now_ms($4), true)
ORDER BY name DESC LIMIT $3;

-- name: take_turn
INSERT INTO {schema}.registry AS r (kind, name, body, until_ms) VALUES ('#turn', $1, $2, {schema}.now_ms($4) + $3)
ON CONFLICT (kind, name) DO UPDATE SET body = excluded.body, until_ms = excluded.until_ms
WHERE r.body = excluded.body OR r.until_ms <= {schema}.now_ms($4) RETURNING name;

-- name: turn
SELECT body, until_ms - {schema}.now_ms($2) FROM {schema}.registry WHERE kind = '#turn' AND name = $1;

-- name: subscribe
-- Returns the owner of the default group; nothing if the worker already has its own group.
INSERT INTO {schema}.registry AS r (kind, name, body) SELECT 'owner', $1, $2
WHERE NOT EXISTS (SELECT 1 FROM {schema}.queue q WHERE q.type = $1 AND q.grp = $2 AND NOT q.dropped)
OR EXISTS (SELECT 1 FROM {schema}.registry o WHERE o.kind = 'owner' AND o.name = $1 AND o.body = $2)
ON CONFLICT (kind, name) DO UPDATE SET body = r.body RETURNING r.body;

-- name: marks
-- Always returns at least one row, which holds the current time.
SELECT {schema}.now_ms($2), r.name, r.body FROM (VALUES (1)) AS one(row)
LEFT JOIN {schema}.registry r ON r.kind = 'trigger-mark' AND r.name = ANY($1::text[]);

-- name: begin_marks
-- Writes marks in the order of their names, so that callers cannot deadlock. An invalid mark is replaced.
INSERT INTO {schema}.registry AS r (kind, name, body)
SELECT DISTINCT 'trigger-mark', g.name COLLATE "C", concat_ws(' ', {schema}.now_ms($2), {schema}.now_ms($2))
FROM unnest($1::text[]) AS g(name) ORDER BY 2
ON CONFLICT (kind, name) DO UPDATE
SET body = CASE WHEN r.body ~ '^[0-9]{1,16} [0-9]{1,16}$' THEN r.body ELSE excluded.body END
RETURNING {schema}.now_ms($2), r.name, r.body;
