"""The PostgreSQL engine: jobs in one schema of a shared database."""
