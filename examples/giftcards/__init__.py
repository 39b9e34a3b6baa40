"""Gift cards: an order goes through three stages, each a job type with retries, a breaker and dead letters."""
