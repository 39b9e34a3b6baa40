"""What only the SQLite engine can get wrong: files, locks, sockets, plans."""
