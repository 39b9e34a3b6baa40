-- Purpose: count jobs by state.
-- Inputs: none. Returns: tenant, type, group and one count per state: folded counts plus deltas, in one snapshot.

-- name: count
SELECT c.tenant, q.type, q.grp, sum(c.pending)::bigint, sum(c.processing)::bigint, sum(c.completed)::bigint,
  sum(c.failed)::bigint, sum(c.cancelled)::bigint
FROM (SELECT queue_id, tenant, pending, processing, completed, failed, cancelled FROM {schema}.count_total
  UNION ALL SELECT queue_id, tenant, pending, processing, completed, failed, cancelled FROM {schema}.count_delta) c
JOIN {schema}.queue q ON q.id = c.queue_id GROUP BY 1, 2, 3 ORDER BY 2, 3, 1;
