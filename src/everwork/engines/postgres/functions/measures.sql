-- Purpose: what attempts that have ended are counted as, see core.measures.
-- Inputs: a duration; or numbers of buckets and the sort of the failure, if it was one. Returns: the number of a bucket; or names.

-- The server's own buckets begin with their bounds, ours end with them. By float8, for which it has a quicker way, and no less exact here.
CREATE OR REPLACE FUNCTION {schema}.bucket_of(duration_ms bigint) RETURNS smallint LANGUAGE sql IMMUTABLE AS $$
  SELECT width_bucket((duration_ms - 1)::float8, {bounds_ms})::smallint
$$;

CREATE OR REPLACE FUNCTION {schema}.measures_of(execution smallint, wait smallint, sort text) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
  SELECT array_remove(ARRAY[({execution_names})[execution + 1], ({wait_names})[wait + 1], {failure_name} || sort], NULL)
$$;
