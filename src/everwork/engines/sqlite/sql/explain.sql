-- Purpose: why a job is not running.
-- Inputs: key. Returns: the type's switches, who asked when, and how many stand ahead in the lane.

-- name: type
SELECT t.name, q.grp, t.paused, t.breaker_open_until_ms, q.asked_at_ms
FROM ew_job j JOIN ew_queue q ON q.id = j.queue JOIN ew_type t ON t.name = q.type WHERE j.key = ?;

-- name: lease
SELECT worker, lease_until_ms FROM ew_leased WHERE key = ?;

-- name: ahead
SELECT count(*) FROM (SELECT 1 FROM ew_ready WHERE queue = ?1 AND lane = ?2 AND (urgency, run_at_ms, key) < (?3, ?4, ?5) LIMIT ?6);
