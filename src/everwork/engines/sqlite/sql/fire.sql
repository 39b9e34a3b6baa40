-- Purpose: mark scheduled times of triggers as passed, each exactly once; create.sql creates their jobs in the same
--   transaction.
-- Inputs: the new marks. Returns: nothing.

-- name: put_mark
INSERT INTO ew_registry (kind, name, body) VALUES ('trigger-mark', ?, ?)
ON CONFLICT DO UPDATE SET body = excluded.body;
