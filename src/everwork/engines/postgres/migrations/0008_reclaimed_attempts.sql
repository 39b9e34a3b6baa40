-- Version 8. Of several expired attempts of a job that are taken back in one call, only the latest is undone. The function
-- does that: it is written again when the version rises.
SELECT 1;
