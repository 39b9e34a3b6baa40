-- Purpose: pass scheduled times of triggers, each once; their jobs are created in the same transaction, see create.sql.
-- Inputs and returns: see each statement.

-- name: take_marks
-- Inputs: triggers, and for each its first mark, used if it has none or an invalid one. Returns: nothing; their rows
-- are locked until the end of the transaction, in the order of their names, and in one statement, so that callers
-- cannot deadlock. A row that the condition excludes is locked, too, but not written: most callers come too late and
-- change nothing.
INSERT INTO {schema}.registry AS r (kind, name, body)
SELECT 'trigger-mark', g.name, g.body FROM unnest($1::text[], $2::text[]) AS g(name, body) ORDER BY g.name COLLATE "C"
ON CONFLICT (kind, name) DO UPDATE SET body = excluded.body WHERE r.body !~ '^[0-9]{1,16} [0-9]{1,16}$';

-- name: taken_marks
-- Inputs: triggers whose rows are locked. Returns: their marks, which after a wait only a new statement sees.
SELECT name, body FROM {schema}.registry WHERE kind = 'trigger-mark' AND name = ANY($1::text[]);

-- name: put_marks
-- Inputs: triggers, and their new marks. Returns: nothing.
UPDATE {schema}.registry r SET body = g.body FROM unnest($1::text[], $2::text[]) AS g(name, body)
WHERE r.kind = 'trigger-mark' AND r.name = g.name;
