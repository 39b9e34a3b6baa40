"""The SQLite engine: a durable queue in a file, with nothing to install."""
