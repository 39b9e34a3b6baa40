-- Version 7. A deleted type keeps its rows until every transaction that may have read them has ended: one of them may
-- be about to create a job of this type. See functions/types.sql.
ALTER TABLE {schema}.type ADD deleted_at_ms bigint, ADD deleted_xid bigint;
