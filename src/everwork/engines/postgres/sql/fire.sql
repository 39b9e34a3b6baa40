-- Purpose: let time points of triggers pass, each once; their jobs are created in the same transaction, see create.sql.
-- Inputs and returns: see each statement.

-- name: take_marks
-- Inputs: triggers, and for each where it stands if it has not begun. Returns: where each stands, its row locked until the end of
-- the transaction. Locked in the order of their names, and in one statement, so that no two callers wait for each other.
INSERT INTO {schema}.registry AS r (kind, name, body)
SELECT 'trigger-mark', g.name, g.body FROM unnest($1::text[], $2::text[]) AS g(name, body) ORDER BY g.name COLLATE "C"
ON CONFLICT (kind, name) DO UPDATE SET body = r.body RETURNING r.name, r.body;

-- name: put_marks
-- Inputs: triggers, and their marks as the points have left them. Returns: nothing.
UPDATE {schema}.registry r SET body = g.body FROM unnest($1::text[], $2::text[]) AS g(name, body)
WHERE r.kind = 'trigger-mark' AND r.name = g.name;
