-- Purpose: mark scheduled times of triggers as passed, each exactly once; create.sql creates their jobs in the same
--   transaction.
-- Inputs and returns: see each statement.

-- name: take_marks
-- Inputs: triggers, and for each a first mark, which is used if it has none or an invalid one. Returns: nothing; their
--   rows are locked until the end of the transaction, in the order of their names, and in one statement, so that
--   callers cannot deadlock. A row excluded by the condition is locked but not written: for most callers, the
--   scheduled time has already passed.
INSERT INTO {schema}.registry AS r (kind, name, body)
SELECT 'trigger-mark', g.name, g.body FROM unnest($1::text[], $2::text[]) AS g(name, body) ORDER BY g.name COLLATE "C"
ON CONFLICT (kind, name) DO UPDATE SET body = excluded.body WHERE r.body !~ '^[0-9]{1,16} [0-9]{1,16}$';

-- name: taken_marks
-- Inputs: triggers whose rows are locked. Returns: their marks. After waiting for a lock, only a new statement sees
--   the current values.
SELECT name, body FROM {schema}.registry WHERE kind = 'trigger-mark' AND name = ANY($1::text[]);

-- name: put_marks
-- Inputs: triggers, and their new marks. Returns: nothing.
UPDATE {schema}.registry r SET body = g.body FROM unnest($1::text[], $2::text[]) AS g(name, body)
WHERE r.kind = 'trigger-mark' AND r.name = g.name;
