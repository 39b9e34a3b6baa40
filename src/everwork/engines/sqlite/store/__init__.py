"""The open file: connections and their threads, transactions, the host's clock, integrity. It knows nothing of jobs."""
