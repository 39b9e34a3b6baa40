-- Purpose: extend leases whose jobs are locked at the moment, by a sweep, an outcome, or a user's transaction.
-- Inputs: sorted keys, attempts, lease_ms, the instant. Returns: key and attempt of the leases that hold.

-- A short lock is waited for; a long one belongs to a user's transaction that completes the job, which also keeps
-- sweeps out: the lease holds, as it is. After the first long one, the others are hardly waited for.
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
      RETURN QUERY SELECT j.key, j.attempt FROM live j
        WHERE j.key = leased_keys[i] AND j.attempt = leased_attempts[i] AND j.state + 0 = 2;
      PERFORM set_config('lock_timeout', '1ms', true);
    END;
  END LOOP;
END $$;
