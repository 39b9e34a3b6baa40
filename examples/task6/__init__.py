"""A job queue behind a small REST API, with deterministic failures: states, attempts and a limit of retries."""
