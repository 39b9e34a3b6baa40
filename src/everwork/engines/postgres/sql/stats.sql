-- Purpose: read hourly worker statistics.
-- Inputs: the hour before the first. Returns: WorkerHour tuples, oldest first.

-- name: hours
SELECT * FROM {schema}.hours_after($1);
