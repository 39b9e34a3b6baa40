-- Purpose: let time points of triggers pass, each once; their jobs are created in the same transaction, see create.sql.
-- Inputs: marks as the points have left them. Returns: nothing.

-- name: put_mark
INSERT INTO ew_registry (kind, name, body) VALUES ('trigger-mark', ?, ?) ON CONFLICT DO UPDATE SET body = excluded.body;
