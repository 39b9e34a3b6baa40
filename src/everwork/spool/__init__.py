"""A local spool: jobs and outcomes that cannot reach the engine are kept in a file and delivered later."""
