-- Purpose: how ended attempts are counted, see core.measures.
-- Inputs: a duration; or numbers of buckets and the kind of failure, if any. Returns: the number of a bucket; or names.

-- The server's buckets include their lower bounds, ours their upper bounds. By float8, which the server searches faster
-- and which is as exact here.
CREATE OR REPLACE FUNCTION {schema}.bucket_of(duration_ms bigint) RETURNS smallint LANGUAGE sql IMMUTABLE AS $$
  SELECT width_bucket((duration_ms - 1)::float8, {bounds_ms})::smallint
$$;

-- A bucket of {no_bucket}: that of an attempt whose duration is not known, which has no name.
CREATE OR REPLACE FUNCTION {schema}.measures_of(execution smallint, wait smallint, sort text) RETURNS text[]
LANGUAGE sql IMMUTABLE AS $$
  SELECT array_remove(ARRAY[({execution_names})[execution + 1], ({wait_names})[wait + 1], {failure_name} || sort], NULL)
$$;
