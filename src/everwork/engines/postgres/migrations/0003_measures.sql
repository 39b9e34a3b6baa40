-- Version 3. How long attempts waited and ran, and of what sort failures were: by hour and type.
-- As other counts: each transaction appends, the sweep folds, readers sum both. Not in work_delta, whose rows processes of version 2 fold
-- by what they know of them. execution and wait: numbers of buckets; sort NULL: completed.
CREATE TABLE {schema}.measure_delta (
  hour int NOT NULL, queue_id int NOT NULL, jobs int NOT NULL, execution smallint NOT NULL, wait smallint NOT NULL, sort text COLLATE "C"
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE TABLE {schema}.measure_hour (
  hour int NOT NULL, queue_id int NOT NULL, what text COLLATE "C" NOT NULL, jobs bigint NOT NULL, PRIMARY KEY (hour, queue_id, what)
) WITH (fillfactor = 50);
