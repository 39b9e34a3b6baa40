-- Purpose: complete attempts in the user's own transaction, with any driver.
-- Inputs: one document {"now", "done", "events"}, see functions/complete.sql. Returns: the keys that passed the guard.

-- name: complete
SELECT {schema}.complete_in($1::jsonb);
