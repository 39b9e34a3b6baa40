-- Purpose: the engine's now (G11), in milliseconds UTC.
-- Inputs: the instant that a test dictates, or NULL. Returns: that instant, or the start of the client's statement.

CREATE OR REPLACE FUNCTION {schema}.now_ms(given bigint) RETURNS bigint LANGUAGE sql STABLE AS $$
  SELECT coalesce(given, (extract(epoch FROM statement_timestamp()) * 1000)::bigint)
$$;
