"""A local spool: what cannot reach the store is kept in a file, and delivered later."""
