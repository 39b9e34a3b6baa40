"""The open file: connections and their threads, transactions, clock jumps, integrity. It knows nothing about jobs."""
