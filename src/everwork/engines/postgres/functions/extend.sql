-- Purpose: extend leases whose jobs are locked at the moment, by a sweep, an outcome, or a user's transaction.
-- Inputs: sorted keys, attempts, lease_ms, the instant. Returns: key and attempt of the leases that hold.

-- The advisory lock that keeps sweeps and extensions of locked leases apart: shared for sweeps, exclusive for
-- extensions.
CREATE OR REPLACE FUNCTION {schema}.lapse_gate() RETURNS bigint LANGUAGE sql STABLE {plan} AS $$
  SELECT hashtextextended('everwork lapses ' || current_schema(), 0)
$$;

-- Waits up to 100 ms for a job's lock. If it is held for longer, a user's transaction is completing the job. In case it
-- rolls back, the lease must hold until the time that its worker was promised, so this time is written to the registry,
-- where sweeps look. Before that, running sweeps are waited for, so that no lease is promised that a sweep is ending.
-- After the first such job, the wait for each further lock is 1 ms.
CREATE OR REPLACE FUNCTION {schema}.extend_locked(leased_keys bigint[], leased_attempts int[], lease_ms bigint,
  at_ms bigint)
RETURNS TABLE (key bigint, attempt int) LANGUAGE plpgsql {plan} SET lock_timeout = '100ms' AS $$
#variable_conflict use_column
BEGIN
  FOR i IN 1..cardinality(leased_keys) LOOP
    BEGIN
      RETURN QUERY UPDATE live j SET lease_until_ms = at_ms + lease_ms
        WHERE j.key = leased_keys[i] AND j.attempt = leased_attempts[i] AND j.state + 0 = 2 RETURNING j.key, j.attempt;
    EXCEPTION WHEN lock_not_available THEN
      PERFORM set_config('lock_timeout', {lock_timeout}, true);
      PERFORM pg_advisory_xact_lock(lapse_gate());
      INSERT INTO registry (kind, name, body, until_ms)
        SELECT '#lease', j.key || ' ' || j.attempt, '', at_ms + lease_ms FROM live j
        WHERE j.key = leased_keys[i] AND j.attempt = leased_attempts[i] AND j.state + 0 = 2
        ON CONFLICT ON CONSTRAINT registry_pkey DO UPDATE SET until_ms = excluded.until_ms;
      RETURN QUERY SELECT j.key, j.attempt FROM live j
        WHERE j.key = leased_keys[i] AND j.attempt = leased_attempts[i] AND j.state + 0 = 2;
      PERFORM set_config('lock_timeout', '1ms', true);
    END;
  END LOOP;
END $$;

-- Whether a lease still holds, although it has expired according to its job's row.
CREATE OR REPLACE FUNCTION {schema}.is_promised(leased_key bigint, leased_attempt int, at_ms bigint)
RETURNS boolean LANGUAGE sql STABLE {plan} AS $$
  SELECT EXISTS (SELECT 1 FROM registry r
    WHERE r.kind = '#lease' AND r.name = leased_key || ' ' || leased_attempt AND r.until_ms > at_ms)
$$;
