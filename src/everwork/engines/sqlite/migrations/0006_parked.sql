-- Version 6. The demand that a waiting worker has parked for a queue: the next create leases its job to this worker.
-- socket: the worker's socket in the folder beside the file, '' in memory; token: which of its parked demands it is.
CREATE TABLE ew_parked (
  queue INTEGER PRIMARY KEY, worker TEXT NOT NULL, lease_ms INTEGER NOT NULL, socket TEXT NOT NULL, token TEXT NOT NULL
);

-- With every column that a claim reads when it looks for the lanes whose turn it is.
DROP INDEX ew_lane_turn;
CREATE INDEX ew_lane_turn ON ew_lane (queue, served, lane, open) WHERE open = 1;
