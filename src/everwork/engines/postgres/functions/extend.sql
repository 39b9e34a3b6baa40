-- Purpose: let leases end later whose jobs are locked this moment, by a sweep, an outcome, or a transaction of the user's.
-- Inputs: keys in their order, attempts, how long, the instant. Returns: key and attempt of the leases that hold.

-- Whoever locks a job for a moment is waited for; whoever keeps it locked is completing it in a transaction of his own, which also
-- keeps sweeps out: the lease holds, as it is. Several of those are not waited for one after the other.
CREATE OR REPLACE FUNCTION {schema}.extend_locked(leased_keys bigint[], leased_attempts int[], lease_ms bigint, at_ms bigint) RETURNS TABLE (key bigint, attempt int)
LANGUAGE plpgsql {plan} SET lock_timeout = '100ms' AS $$
#variable_conflict use_column
BEGIN
  FOR i IN 1..cardinality(leased_keys) LOOP
    BEGIN
      RETURN QUERY UPDATE live j SET lease_until_ms = at_ms + lease_ms
        WHERE j.key = leased_keys[i] AND j.attempt = leased_attempts[i] AND j.state + 0 = 2 RETURNING j.key, j.attempt;
    EXCEPTION WHEN lock_not_available THEN
      RETURN QUERY SELECT j.key, j.attempt FROM live j WHERE j.key = leased_keys[i] AND j.attempt = leased_attempts[i] AND j.state + 0 = 2;
      PERFORM set_config('lock_timeout', '1ms', true);
    END;
  END LOOP;
END $$;
