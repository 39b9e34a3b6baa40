-- Version 3. Attempts that have ended, by hour: in what bucket of durations and of waits they are, and why they failed.
-- what: a name of core.measures. Nothing is known of attempts that ended before.
CREATE TABLE ew_measure (
  hour INTEGER NOT NULL, queue INTEGER NOT NULL, what TEXT NOT NULL, jobs INTEGER NOT NULL, PRIMARY KEY (hour, queue, what)
) WITHOUT ROWID;
