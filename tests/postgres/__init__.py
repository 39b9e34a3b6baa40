"""What concerns PostgreSQL only."""
