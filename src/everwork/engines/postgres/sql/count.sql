-- Purpose: count jobs by state.
-- Inputs: none. Returns: tenant, type, group and one count per state: folded counts plus deltas, in one snapshot.

-- name: count
SELECT * FROM {schema}.count_jobs();
