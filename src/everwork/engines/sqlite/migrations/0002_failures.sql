-- Version 2. The numbers of a type's policy stand in columns, so that no claim and no sweep reads JSON. Policies of
-- version 1 speak of retries alone: none of these numbers needs to be filled in.

-- breaker_max NULL: the policy has no breaker. back_ms: after how long dead letters come back by themselves.
ALTER TABLE ew_type ADD COLUMN breaker_probe_attempt INTEGER NOT NULL DEFAULT 0;
ALTER TABLE ew_type ADD COLUMN breaker_max INTEGER;
ALTER TABLE ew_type ADD COLUMN breaker_open_ms INTEGER;
ALTER TABLE ew_type ADD COLUMN back_ms INTEGER;
ALTER TABLE ew_type ADD COLUMN back_rounds INTEGER;
ALTER TABLE ew_type ADD COLUMN keep_completed_ms INTEGER;
ALTER TABLE ew_type ADD COLUMN keep_failed_ms INTEGER;

-- The window of the rate: since when, and how many were leased in it. The dead letter up to which all were looked at.
ALTER TABLE ew_queue ADD COLUMN rate_since_ms INTEGER;
ALTER TABLE ew_queue ADD COLUMN rate_taken INTEGER NOT NULL DEFAULT 0;
ALTER TABLE ew_queue ADD COLUMN back_at_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE ew_queue ADD COLUMN back_key INTEGER NOT NULL DEFAULT 0;

-- Dead letters in the order in which they failed.
CREATE INDEX ew_failed ON ew_finished (queue, finished_at_ms, key) WHERE state = 4;

-- How often a dead letter has come back by itself. The history cannot tell: it forgets.
CREATE TABLE ew_back (key INTEGER PRIMARY KEY, rounds INTEGER NOT NULL);
