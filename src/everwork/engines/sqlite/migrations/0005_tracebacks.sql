-- Version 5. Where a handler raised, or was when it timed out. Nothing is known of attempts that ended before.
ALTER TABLE ew_history ADD COLUMN traceback TEXT;
