-- Purpose: let time points of triggers pass, each once; their jobs are created in the same transaction, see create.sql.
-- Inputs and returns: see each statement.

-- name: take_marks
-- Inputs: triggers, and for each where it stands if it has not begun, or what it holds is no mark. Returns: nothing; their rows are
-- locked until the end of the transaction, in the order of their names, and in one statement, so that no two callers wait for
-- each other. A row that the condition leaves alone is locked, too, but not written anew: most callers come too late and change nothing.
INSERT INTO {schema}.registry AS r (kind, name, body)
SELECT 'trigger-mark', g.name, g.body FROM unnest($1::text[], $2::text[]) AS g(name, body) ORDER BY g.name COLLATE "C"
ON CONFLICT (kind, name) DO UPDATE SET body = excluded.body WHERE r.body !~ '^[0-9]{1,16} [0-9]{1,16}$';

-- name: taken_marks
-- Inputs: triggers whose rows are locked. Returns: where each stands, which only a statement of its own sees after it had to wait.
SELECT name, body FROM {schema}.registry WHERE kind = 'trigger-mark' AND name = ANY($1::text[]);

-- name: put_marks
-- Inputs: triggers, and their marks as the points have left them. Returns: nothing.
UPDATE {schema}.registry r SET body = g.body FROM unnest($1::text[], $2::text[]) AS g(name, body)
WHERE r.kind = 'trigger-mark' AND r.name = g.name;
