-- Version 5. Where a handler raised, or was when it timed out. Nothing is known of attempts that ended before, nor of those
-- that processes of version 4 end.
ALTER TABLE {schema}.history ADD traceback text;

-- Attempts whose lease lapsed have no run time. The functions do that: they are written again when the version rises.
COMMENT ON COLUMN {schema}.measure_delta.execution IS 'The bucket of the run time; -1: it is not known.';
