-- Version 10. The demands of waiting workers, to which creates hand jobs over: see functions/create_one.sql and
-- functions/park.sql. UNLOGGED: waiting workers renew their demands once a second, and a transaction that writes nothing
-- else is not synced. After a crash of the server the table is empty, and so it is on a replica that is promoted.
-- token, secret, receiver: of the connection that listens for the worker, see receivers.py. Every role can read the token
-- in pg_locks; who knows the secret can read and forge what is handed over. A demand is not updated, but replaced:
-- the index finds the latest one although dead entries remain under a snapshot that is held open.
CREATE UNLOGGED TABLE {schema}.parked (
  queue_id int NOT NULL, token int NOT NULL, receiver int NOT NULL, until_ms bigint NOT NULL, lease_ms bigint NOT NULL,
  worker text NOT NULL, secret text NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE INDEX parked_until ON {schema}.parked (queue_id, until_ms);
