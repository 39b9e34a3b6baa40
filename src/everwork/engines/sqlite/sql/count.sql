-- Purpose: count jobs by state.
-- Inputs: none. Returns: tenant, type, group, state, jobs: folded counts plus deltas, in one snapshot.

-- name: count
SELECT c.tenant, q.type, q.grp, c.state, sum(c.jobs)
FROM (
  SELECT queue, tenant, state, jobs FROM ew_tally
  UNION ALL
  SELECT queue, tenant, state, jobs FROM ew_delta) c
JOIN ew_queue q ON q.id = c.queue
GROUP BY c.tenant, q.type, q.grp, c.state HAVING sum(c.jobs) <> 0
ORDER BY q.type, q.grp, c.tenant, c.state;
