-- Version 5. What reclaim needs to undo a lapse: since when the job had been due, and its attempts. Nothing is known of other ends,
-- nor of lapses that another store or version has counted.
ALTER TABLE {schema}.history ADD due_at_ms bigint, ADD attempts smallint;
