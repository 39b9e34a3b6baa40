-- Purpose: pass scheduled times of triggers, each once; their jobs are created in the same transaction, see create.sql.
-- Inputs: the marks after these points. Returns: nothing.

-- name: put_mark
INSERT INTO ew_registry (kind, name, body) VALUES ('trigger-mark', ?, ?)
ON CONFLICT DO UPDATE SET body = excluded.body;
